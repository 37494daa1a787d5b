"""The one folder that touches JAX's private modules, parameter names or version.

The rest of sawlog is written against the names below. When JAX moves something, edit this folder;
each name says what it promises, not where JAX keeps it:

- ``private``: imports from ``jax._src``, and the check at import that nothing is missing
- ``values``, ``tracing``: types of arrays and tracers; active traces, tracing to a jaxpr
- ``primitives``, ``effects``: rules and effects of sawlog's own primitives
- ``equations``, ``loops``, ``metadata``: equations of JAX's primitives, read and rebuilt
- ``operations``: dimensions and geometry of first-order equations
- ``patches``: rules of JAX's primitives that are wrapped to know about logs
- ``jitted``, ``flattening``: options of jitted functions; why a pytree is flattened
"""

from sawlog.jax._compat.derivatives import bind_differentiably as bind_differentiably
from sawlog.jax._compat.derivatives import for_one_example as for_one_example
from sawlog.jax._compat.derivatives import is_differentiated_jointly as is_differentiated_jointly
from sawlog.jax._compat.distributed import claim_key as claim_key
from sawlog.jax._compat.distributed import get_key as get_key
from sawlog.jax._compat.distributed import is_distributed as is_distributed
from sawlog.jax._compat.distributed import put_key as put_key
from sawlog.jax._compat.effects import Effect as Effect
from sawlog.jax._compat.effects import guards_transfers as guards_transfers
from sawlog.jax._compat.effects import is_split_over_processes as is_split_over_processes
from sawlog.jax._compat.effects import lower_to_ordered_callback as lower_to_ordered_callback
from sawlog.jax._compat.effects import needs_devices_to_lower as needs_devices_to_lower
from sawlog.jax._compat.effects import order_tokens as order_tokens
from sawlog.jax._compat.effects import prepare_order as prepare_order
from sawlog.jax._compat.effects import register_effect as register_effect
from sawlog.jax._compat.effects import wait_for_effects as wait_for_effects
from sawlog.jax._compat.equations import ShardMap as ShardMap
from sawlog.jax._compat.equations import bind_branches as bind_branches
from sawlog.jax._compat.equations import bind_checkpoint as bind_checkpoint
from sawlog.jax._compat.equations import bind_equation as bind_equation
from sawlog.jax._compat.equations import bind_jit as bind_jit
from sawlog.jax._compat.equations import bind_linear_solve as bind_linear_solve
from sawlog.jax._compat.equations import branches_of as branches_of
from sawlog.jax._compat.equations import checkpointed as checkpointed
from sawlog.jax._compat.equations import equations_of_each as equations_of_each
from sawlog.jax._compat.equations import inner_jaxpr as inner_jaxpr
from sawlog.jax._compat.equations import is_frozen_dataclass as is_frozen_dataclass
from sawlog.jax._compat.equations import linear_solver as linear_solver
from sawlog.jax._compat.equations import may_be_inlined as may_be_inlined
from sawlog.jax._compat.equations import subjaxprs as subjaxprs
from sawlog.jax._compat.equations import uses_references as uses_references
from sawlog.jax._compat.equations import with_branches as with_branches
from sawlog.jax._compat.equations import with_equations as with_equations
from sawlog.jax._compat.equations import without_stops as without_stops
from sawlog.jax._compat.flattening import flattened_for as flattened_for
from sawlog.jax._compat.jitted import compiler_options as compiler_options
from sawlog.jax._compat.jitted import jit_arguments as jit_arguments
from sawlog.jax._compat.jitted import unsupported_settings as unsupported_settings
from sawlog.jax._compat.loops import Scan as Scan
from sawlog.jax._compat.loops import While as While
from sawlog.jax._compat.loops import scan_unroll as scan_unroll
from sawlog.jax._compat.loops import shortened_scan as shortened_scan
from sawlog.jax._compat.metadata import UNKNOWN_LINE as UNKNOWN_LINE
from sawlog.jax._compat.metadata import equation_scope as equation_scope
from sawlog.jax._compat.metadata import exclude_from_tracebacks as exclude_from_tracebacks
from sawlog.jax._compat.metadata import mark as mark
from sawlog.jax._compat.metadata import mark_of as mark_of
from sawlog.jax._compat.metadata import marked as marked
from sawlog.jax._compat.metadata import scopes as scopes
from sawlog.jax._compat.metadata import source_line as source_line
from sawlog.jax._compat.metadata import transforms as transforms
from sawlog.jax._compat.operations import CASTS as CASTS
from sawlog.jax._compat.operations import Conv as Conv
from sawlog.jax._compat.operations import Dot as Dot
from sawlog.jax._compat.operations import Gather as Gather
from sawlog.jax._compat.operations import RaggedDot as RaggedDot
from sawlog.jax._compat.operations import Scatter as Scatter
from sawlog.jax._compat.operations import broadcast_dimensions as broadcast_dimensions
from sawlog.jax._compat.operations import collective_axes as collective_axes
from sawlog.jax._compat.operations import equation_name as equation_name
from sawlog.jax._compat.operations import gather_clips as gather_clips
from sawlog.jax._compat.operations import has_gradient as has_gradient
from sawlog.jax._compat.operations import iota_values as iota_values
from sawlog.jax._compat.operations import moved_dimensions as moved_dimensions
from sawlog.jax._compat.operations import operated_axis as operated_axis
from sawlog.jax._compat.operations import padding as padding
from sawlog.jax._compat.operations import permutation as permutation
from sawlog.jax._compat.operations import reduced_axes as reduced_axes
from sawlog.jax._compat.operations import removed_dimensions as removed_dimensions
from sawlog.jax._compat.operations import repetitions as repetitions
from sawlog.jax._compat.operations import reshape_order as reshape_order
from sawlog.jax._compat.operations import reversed_dimensions as reversed_dimensions
from sawlog.jax._compat.operations import right_hand_sides as right_hand_sides
from sawlog.jax._compat.operations import slice_bounds as slice_bounds
from sawlog.jax._compat.operations import slice_sizes as slice_sizes
from sawlog.jax._compat.operations import transformed_dimensions as transformed_dimensions
from sawlog.jax._compat.operations import windows as windows
from sawlog.jax._compat.patches import batch_logs_of_unmapped as batch_logs_of_unmapped
from sawlog.jax._compat.patches import batch_pvary_of_varying as batch_pvary_of_varying
from sawlog.jax._compat.patches import forget_kept_effects as forget_kept_effects
from sawlog.jax._compat.patches import mark_without_tangents as mark_without_tangents
from sawlog.jax._compat.patches import show_effects_inside as show_effects_inside
from sawlog.jax._compat.patches import stage_instead_of_running as stage_instead_of_running
from sawlog.jax._compat.patches import wrap_batching as wrap_batching
from sawlog.jax._compat.patches import wrap_jvp as wrap_jvp
from sawlog.jax._compat.patches import wrap_scan_hoisting as wrap_scan_hoisting
from sawlog.jax._compat.patches import wrap_while_recomputation as wrap_while_recomputation
from sawlog.jax._compat.primitives import axis_adder as axis_adder
from sawlog.jax._compat.primitives import batch_program as batch_program
from sawlog.jax._compat.primitives import call_hi_primitive_p as call_hi_primitive_p
from sawlog.jax._compat.primitives import composite_p as composite_p
from sawlog.jax._compat.primitives import custom_vmap_p as custom_vmap_p
from sawlog.jax._compat.primitives import define_batching as define_batching
from sawlog.jax._compat.primitives import (
    define_batching_with_outputs as define_batching_with_outputs,
)
from sawlog.jax._compat.primitives import define_in_forward_mode as define_in_forward_mode
from sawlog.jax._compat.primitives import define_jvp as define_jvp
from sawlog.jax._compat.primitives import define_lowering as define_lowering
from sawlog.jax._compat.primitives import define_silent_autodiff as define_silent_autodiff
from sawlog.jax._compat.primitives import define_transpose as define_transpose
from sawlog.jax._compat.primitives import differentiates_backwards as differentiates_backwards
from sawlog.jax._compat.primitives import hi_primitive_function as hi_primitive_function
from sawlog.jax._compat.primitives import hi_primitive_types as hi_primitive_types
from sawlog.jax._compat.primitives import reduce_p as reduce_p
from sawlog.jax._compat.primitives import remat_opt_p as remat_opt_p
from sawlog.jax._compat.primitives import replace_where_bound as replace_where_bound
from sawlog.jax._compat.primitives import shard_map_p as shard_map_p
from sawlog.jax._compat.private import ClosedJaxpr as ClosedJaxpr
from sawlog.jax._compat.private import Jaxpr as Jaxpr
from sawlog.jax._compat.private import JaxprEqn as JaxprEqn
from sawlog.jax._compat.private import Literal as Literal
from sawlog.jax._compat.private import Primitive as Primitive
from sawlog.jax._compat.programs import InnerProgram as InnerProgram
from sawlog.jax._compat.programs import feature_axis as feature_axis
from sawlog.jax._compat.programs import inner_programs as inner_programs
from sawlog.jax._compat.programs import moved_axis as moved_axis
from sawlog.jax._compat.programs import wrap_differentiated as wrap_differentiated
from sawlog.jax._compat.tracing import EvalTrace as EvalTrace
from sawlog.jax._compat.tracing import evaluating as evaluating
from sawlog.jax._compat.tracing import hoist_consts as hoist_consts
from sawlog.jax._compat.tracing import inside_custom_jvp_rule as inside_custom_jvp_rule
from sawlog.jax._compat.tracing import inside_inner_function as inside_inner_function
from sawlog.jax._compat.tracing import inside_jacfwd as inside_jacfwd
from sawlog.jax._compat.tracing import not_tracing as not_tracing
from sawlog.jax._compat.tracing import reordered as reordered
from sawlog.jax._compat.tracing import trace_context as trace_context
from sawlog.jax._compat.tracing import trace_flat as trace_flat
from sawlog.jax._compat.tracing import under_jit as under_jit
from sawlog.jax._compat.values import as_aval as as_aval
from sawlog.jax._compat.values import explicit_sharding as explicit_sharding
from sawlog.jax._compat.values import has_tangent as has_tangent
from sawlog.jax._compat.values import instantiate_zero as instantiate_zero
from sawlog.jax._compat.values import is_abstract as is_abstract
from sawlog.jax._compat.values import is_array as is_array
from sawlog.jax._compat.values import is_jax_value as is_jax_value
from sawlog.jax._compat.values import is_reference as is_reference
from sawlog.jax._compat.values import is_tracer as is_tracer
from sawlog.jax._compat.values import is_weak as is_weak
from sawlog.jax._compat.values import is_zero as is_zero
from sawlog.jax._compat.values import key_kind as key_kind
from sawlog.jax._compat.values import lane_aval as lane_aval
from sawlog.jax._compat.values import make_varying as make_varying
from sawlog.jax._compat.values import mesh_of as mesh_of
from sawlog.jax._compat.values import mesh_of_type as mesh_of_type
from sawlog.jax._compat.values import on_device as on_device
from sawlog.jax._compat.values import typeof as typeof
from sawlog.jax._compat.values import unreduced_axes as unreduced_axes
from sawlog.jax._compat.values import varying_axes as varying_axes
