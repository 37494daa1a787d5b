"""Differentiate whole training runs by the weights of their examples.

- ``api``: the public function; ``arguments`` checks its arguments
- ``program``, ``states``: a training program as pure functions, and its derivative
- ``safe_roots``, ``stops``: what that derivative follows; ``step_checks``: whether it is right
- ``run_data``: batches, subsets and keys of each run; ``queries``: metrics at its end
- ``schedule``, ``checkpoints``, ``replay``, ``deterministic``: forwards, then backwards
- ``runner``, ``run_bank``, ``stopping``: one run after another, resumable
- ``curvature``: influence functions at the end of a run, for averages over few runs
- ``roughness``: whether one run can be trusted
"""

from sawlog.jax._training.api import through_training as through_training
