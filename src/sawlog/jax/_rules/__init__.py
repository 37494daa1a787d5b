"""Rules for JAX's own higher-order primitives; importing this package registers them."""

from sawlog.jax._rules import autodiff_patches as autodiff_patches
from sawlog.jax._rules import branches as branches
from sawlog.jax._rules import calls as calls
from sawlog.jax._rules import derivatives as derivatives
from sawlog.jax._rules import equinox as equinox
from sawlog.jax._rules import loops as loops
from sawlog.jax._rules import sharding as sharding
from sawlog.jax._rules import vmap_patches as vmap_patches
