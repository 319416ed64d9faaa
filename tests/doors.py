"""The one door through which tests reach what is private in the library.

A room that moves, or a name that changes, costs one file here. And all that tests may reach stands in one place: the
fewer names, the freer the library is. Public names come from `autockpt` itself. Where two rooms have the same name, or
where a name says too little by itself, `as` says whose it is. Without torch only the rooms that need none are here.
"""

from __future__ import annotations

import importlib.util

from autockpt import _HOME as HOMES
from autockpt._choose import below
from autockpt._choose import solve as solving
from autockpt._choose.by_clocks import whole_blocks
from autockpt._choose.candidates import Candidates
from autockpt._choose.candidates import runs as candidate_runs
from autockpt._choose.candidates.entering import entering_bytes
from autockpt._choose.candidates.from_plan import find_planned
from autockpt._choose.candidates.menus import state_flow
from autockpt._choose.candidates.nested import is_inside, replays_in_parts
from autockpt._choose.candidates.runs import runs_of, sibling_rows
from autockpt._choose.candidates.search import find_candidates
from autockpt._choose.cuts.cut_runs import cut_runs
from autockpt._choose.cuts.revolve import fewest_runs, revolve
from autockpt._choose.dataflow.min_cut import hull
from autockpt._choose.early import find_early
from autockpt._choose.index import profile_index
from autockpt._choose.index.products import multiplies
from autockpt._choose.index.profile_index import Index as ProfileIndex
from autockpt._choose.moves.clock import StepClock as LinkClock
from autockpt._choose.moves.ends import Ends
from autockpt._choose.moves.road import Move, Road, Trip
from autockpt._choose.pinned.pins import with_pins
from autockpt._choose.predict.bound import lay_out, least_seconds
from autockpt._choose.predict.peak_breakdown import advise, peak_parts
from autockpt._choose.predict.timeline import split_levels
from autockpt._choose.replay_cost.effects import PlannedReplay, replay_of
from autockpt._choose.replay_cost.replay_seconds import HostWork
from autockpt._choose.replay_cost.two_clocks import Launches
from autockpt._choose.replay_cost.two_clocks import run as run_on_two_clocks
from autockpt._choose.replay_cost.two_clocks import simulate as simulate_two_clocks
from autockpt._choose.solve import segments_of
from autockpt._cli import main as cli_main
from autockpt._cli.screen import progress, tell
from autockpt._cli.verbs import demo as cli_demo
from autockpt._cli.verbs.doctor import TRIED_BYTES, DoctorProblem, DoctorReport, Tried, examine
from autockpt._cli.verbs.doctor import SeenDevice as DoctorDevice
from autockpt._cli.verbs.doctor import lines as doctor_lines
from autockpt._cli.verbs.doctor import problems as doctor_problems
from autockpt._compiled.problem import state as state_joint_step
from autockpt._compiled.regions import regions
from autockpt._compiled.regions import ways as region_ways
from autockpt._compiled.step import Fused as JointFused
from autockpt._compiled.step import JointStep
from autockpt._compiled.step import Operator as JointOperator
from autockpt._compiled.step import fused_step as fused_joint_step
from autockpt._compiled.step import levels as joint_levels
from autockpt._data import files as data_files
from autockpt._data.compiled_plan import JointGraph
from autockpt._data.goal import Asked, Goal, Pins
from autockpt._data.hardware.devices import DEVICES, UnknownDevice, gpu_of, of_memory
from autockpt._data.hardware.devices import MARGIN as ALLOCATOR_MARGIN
from autockpt._data.hardware.devices import named as named_device
from autockpt._data.hardware.paces import QUEUE, host_mode, paces_of
from autockpt._data.hardware.rooflines import IDLE_HOST, ROOFLINES, HostCosts
from autockpt._data.offload import Moved
from autockpt._data.shipped import is_name as is_shipped_name
from autockpt._data.shipped import names as shipped_names
from autockpt._data.shipped import read as read_shipped
from autockpt._data.step.copies import CopiedTensors
from autockpt._data.step.host_seconds import HostSeconds
from autockpt._data.step.tables import (
    ArgumentRecord,
    CallRecord,
    FunctionTable,
    Recipe,
    RefusedPart,
    SaveTable,
    Static,
    TensorTable,
)
from autockpt._data.text import terminal
from autockpt._data.text.keys import split_key
from autockpt._fit import fit as fit_room
from autockpt._fit import ways as fit_ways
from autockpt._fit.accumulated import floor_bytes, gradients_of, later, mixes_samples
from autockpt._fit.fit import find_fits, largest
from autockpt._fit.held import held_by
from autockpt._fit.sized import Batches
from autockpt._fit.switches import switches
from autockpt._fit.timed import carried, is_carried
from autockpt._fit.ways import FitClock, splits_of
from autockpt._show.explain.brief import brief_frontier, brief_plan, brief_profile
from autockpt._show.explain.chart import LAYERS as CHART_LAYERS
from autockpt._show.explain.chart import timeline_chart
from autockpt._show.explain.decisions import REASONS, Activations, DecisionRow
from autockpt._show.explain.decisions import decide as explain_decide
from autockpt._show.explain.frontier import frontier_page
from autockpt._show.explain.plan import plan_page
from autockpt._show.explain.profile import profile_page
from autockpt._show.explain.results import recorded_page
from autockpt._show.explain.verification import verification_page
from autockpt._show.page import Bar, Page, PageTable
from autockpt._show.pictures.course import follow as follow_course
from autockpt._train.messages.kinds import WAITING as CALLED_WAITING
from autockpt._train.messages.words import in_words, phrase, shortened
from autockpt.solvers.names import NAMES as SOLVER_NAMES

if importlib.util.find_spec("torch") is not None:
    from autockpt import _record as record_room
    from autockpt._calls import checksum as checksums
    from autockpt._calls.checksum import COLUMNS as CHECKSUM_COLUMNS
    from autockpt._calls.checksum import all_same as all_checksums_same
    from autockpt._calls.checksum import checksum_of_saved
    from autockpt._calls.checksum import same as same_checksum
    from autockpt._calls.columns import Places, layout_of, on_device
    from autockpt._calls.found import held as frames_held
    from autockpt._calls.found import state as frames_state
    from autockpt._calls.found.around import (
        Around,
        Generator,
        States,
        Undo,
        generators_of,
        needed,
        never_draws,
        set_states,
        states_of,
        take_back,
    )
    from autockpt._calls.found.held import Detached
    from autockpt._calls.found.host_generators import NUMPY, PYTHON, HostGenerator
    from autockpt._calls.found.reference import Reference
    from autockpt._calls.found.state import ModuleState
    from autockpt._calls.found.tags import Tags
    from autockpt._calls.found.turns import TURNS
    from autockpt._calls.layout import bytes_of, is_dense, span_bytes
    from autockpt._calls.names import function_name
    from autockpt._calls.own_errors import OwnErrors
    from autockpt._calls.unrepeatable import why_unrepeatable
    from autockpt._calls.values import decode, encode, tensors
    from autockpt._check.fitting import largest as largest_fitting
    from autockpt._check.max_batch import Throughput
    from autockpt._check.verify import Difference
    from autockpt._check.verify.outcome import Observed
    from autockpt._check.verify.outcome import compare as compare_outcomes
    from autockpt._compiled import hold as compiled_holding
    from autockpt._compiled.dry import trace as trace_joint_graphs
    from autockpt._compiled.hold import held_by as compiled_hold_of
    from autockpt._compiled.partition import Partition, eager_backend
    from autockpt._compiled.plan import Lowered, plan_by_code
    from autockpt._compiled.plan import lowest_plan as lowest_compiled_plan
    from autockpt._compiled.plan import make_plan as make_compiled_plan
    from autockpt._compiled.plan import plan_within as compiled_plan_within
    from autockpt._compiled.plan import prepare as prepare_joint_graphs
    from autockpt._compiled.reading import read as read_joint_graphs
    from autockpt._ranks import One, ranks_of
    from autockpt._ranks import group as rank_group
    from autockpt._ranks import refuse as ranks_refuse
    from autockpt._ranks.buckets import Buckets, buckets_among
    from autockpt._ranks.by_hand import what_runs
    from autockpt._ranks.pipeline import Pipeline
    from autockpt._record import alive, in_place, recorder
    from autockpt._record.aside.switches import one_sequence_a_row
    from autockpt._record.aside.threads import nothing_is_freed
    from autockpt._record.fake import RooflineClock
    from autockpt._record.loss import assumed_loss
    from autockpt._record.one_rank.group import world_of
    from autockpt._record.one_rank.shard import blocks_of
    from autockpt._record.optimizers.memory import OptimizerMemory, choose_optimizers, optimizer_memory
    from autockpt._record.optimizers.steps import OptimizerSteps
    from autockpt._record.recorder import Mode as RecordMode
    from autockpt._record.recorder import profiles_for, record_step
    from autockpt._record.seconds import host_speed, timing
    from autockpt._record.step import Arguments, training_step
    from autockpt._record.tables.lifetimes import Lifetimes, lifetimes
    from autockpt._record.watch import observer
    from autockpt._record.watch.marks import Mark, MarkKind
    from autockpt._record.watch.observer import Observer
    from autockpt._record.watch.routing import routed_operators as operator_routing
    from autockpt._record.watch.stamps import Stamps
    from autockpt._record.watch.static import StaticStorages
    from autockpt._record.written import recorded as record_recorded
    from autockpt._record.written.attribute import Attributed, HeldBy, Stood, Written, attribute, events_of
    from autockpt._record.written.recorded import Recorded
    from autockpt._run.compare import check as compare_check
    from autockpt._run.compare.checks import Checking, ReplayChecks
    from autockpt._run.compare.hidden import HookState
    from autockpt._run.frames import recording as frames_recording
    from autockpt._run.frames import slots as frames_slots
    from autockpt._run.frames import units as frames_units
    from autockpt._run.frames.frame import Frame
    from autockpt._run.frames.routing import patched_forward
    from autockpt._run.frames.slots import Slot
    from autockpt._run.frames.table import Handle
    from autockpt._run.frames.thread import thread as frames_thread
    from autockpt._run.frames.unit import UnitRun
    from autockpt._run.patch.install import govern, install, installed_plan, set_aside, uninstall
    from autockpt._run.patch.installation import Installation, PlanReport
    from autockpt._run.patch.patches import governor_of, patched_behind
    from autockpt._run.patch.watching import watching_replays
    from autockpt._stash import open_stash
    from autockpt._stash.base import NoRoom, Token
    from autockpt._stash.file import FileStash
    from autockpt._stash.held import HeldStashes
    from autockpt._stash.host import HostStash
    from autockpt._stash.late_writes import LateWrites
    from autockpt._stash.shard import ShardStash
    from autockpt._stash.space import arenas as stash_arenas
    from autockpt._stash.space import memory as stash_memory
    from autockpt._stash.space import pieces as stash_pieces
    from autockpt._stash.space.arenas import Arenas, Cursor
    from autockpt._stash.space.free_list import FreeList
    from autockpt._stash.space.memory import HostMemory, pageable
    from autockpt._stash.space.memory import Room as HostRoom
    from autockpt._stash.space.memory import room as host_room
    from autockpt._stash.spill import Spill, SpilledTensor
    from autockpt._stash.spilled_step import SpilledStep
    from autockpt._stash.waiting import Waiting
    from autockpt._torch import private as torch_private
    from autockpt._torch.devices import AllocatorTape, Clock, Device, HostClock, device_of, planned_device, rounded
    from autockpt._torch.devices import Event as AllocatorEvent
    from autockpt._torch.devices import clock as device_clock
    from autockpt._torch.devices.cpu import Cpu
    from autockpt._torch.devices.cuda import Cuda
    from autockpt._torch.devices.lanes import Lanes
    from autockpt._torch.private.compiling import CompileSettings
    from autockpt._train import request as train_request
    from autockpt._train.batches.batch import Batch, Forward, batch_of, gradient_bytes
    from autockpt._train.batches.batch import Kind as BatchKind
    from autockpt._train.batches.headroom import enlarged
    from autockpt._train.deciding.alike import holds as holds_kind
    from autockpt._train.deciding.known import History, Known, Ready
    from autockpt._train.deciding.machine import Decision, step_begins, step_ends, step_grows
    from autockpt._train.deciding.state import MOST_RECORDED, MOST_TRIES, Ran, StepBegins, StepEnds, StepState
    from autockpt._train.plans import refusing
    from autockpt._train.ranks import agreement
    from autockpt._train.request import Request
    from autockpt._train.runners import Runners
    from autockpt._train.step import MOST_FORWARDS
