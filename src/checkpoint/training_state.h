// Schedulers, scalers and random streams in the forms that Python keeps, both ways.
//
// Schedulers and the scaler have a state of plain values here (state()). Python's dicts have the same content under
// other keys. Python's own generators (random, numpy) have no counterpart in C++. Their states are written from the
// run's seed; states that were read are carried through.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "hasten/core/value.h"
#include "hasten/files/python/python_value.h"
#include "hasten/process/random.h"

namespace hasten::checkpoint {

/// Returns the argument for PyTorch's LRScheduler.load_state_dict, from a scheduler's state(). Options are left out, so
/// the Python program's own stay. Throws: UsageError if it is no scheduler's state.
files::PythonValue scheduler_to_python(const core::Value& state);
/// Returns a state for load_state of a scheduler whose state() is `own` now, from PyTorch's state_dict().
/// Throws: DataError if the dict is of another kind of scheduler.
core::Value scheduler_from_python(const files::PythonValue& saved, const core::Value& own);
/// Returns the options in PyTorch's state_dict() that the scheduler with the state `own` has too, as {"options": …}.
/// Those of its parts are under "schedulers". They are for comparison. Throws: nothing for
/// a dict of another kind.
core::Value scheduler_options_from_python(const files::PythonValue& saved, const core::Value& own);

/// GradScaler.state_dict() from a scaler's state, and back. Apex's {"loss_scaler0": {loss_scale, unskipped}} is read
/// too.
files::PythonValue scaler_to_python(const core::Value& state);
/// `own` gives factors and interval that a form lacks. Throws: DataError for a dict of another form.
core::Value scaler_from_python(const files::PythonValue& saved, const core::Value& own);

/// Accelerate's random_states_{rank}.pkl.
struct PythonRandom {
  process::RandomState torch = {};
  int64_t step = 0;
  /// States of Python's `random` and of numpy as they were read; none if there were none.
  files::PythonValue python = {}, numpy = {};
};
/// Throws: DataError if it has no torch_manual_seed.
PythonRandom random_from_python(const files::PythonValue& saved);
/// If `python` or `numpy` is none, writes a state as of random.seed(seed) or numpy.random.seed(seed).
files::PythonValue to_python(const PythonRandom& random, uint64_t seed);

/// Returns the seed that a CPU generator's state was begun from.
uint64_t seed_of(const at::Tensor& cpu_state);
/// 624 words of an MT19937 as Python's random.seed (by_array) or numpy.random.seed makes them. Pure.
std::vector<uint32_t> mt19937_state(uint64_t seed, bool by_array);

}  // namespace hasten::checkpoint
