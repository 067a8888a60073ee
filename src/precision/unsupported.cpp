// Operators that fail below float32 on a CPU; see known_limitations.h.
//
// All modules of libtorch were tried once, forward and backward, in bfloat16 and float16. These were the ones that
// failed. Whether they do depends on the processor and the release, so each is tried again where it matters.
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>

#include "hasten/precision/autocast.h"
#include "hasten/precision/known_limitations.h"
#include "hasten/precision/op_policies.h"

namespace hasten::precision {
namespace {

struct Candidate {
  /// The module's class; empty for operators alone.
  const char* module;
  std::vector<const char*> operators;
  void (*run)(at::ScalarType dtype);
};

void run_lstm(at::ScalarType) {
  const auto weights = [](at::IntArrayRef sizes) { return at::zeros(sizes).requires_grad_(); };
  const std::vector<at::Tensor> parameters = {weights({16, 4}), weights({16, 4}), weights({16}), weights({16})};
  const auto state = at::zeros({1, 2, 4});
  at::lstm(at::zeros({3, 2, 4}), {state, state}, parameters, true, 1, 0.0, true, false, false);
}

void run_rrelu(at::ScalarType dtype) {
  at::rrelu(at::zeros({2, 2}, dtype), 0.1, 0.3, /*training=*/true);
}

void run_det(at::ScalarType dtype) {
  at::det(at::eye(2, at::TensorOptions(dtype)));
}

const std::array<Candidate, 3>& candidates() {
  static const std::array<Candidate, 3> list = {
      {{"LSTM", {"mkldnn_rnn_layer"}, run_lstm},
       {"RReLU", {"rrelu"}, run_rrelu},
       {"", {"det", "linalg_det", "slogdet", "linalg_slogdet", "logdet"}, run_det}}};
  return list;
}

bool fails(const Candidate& candidate, at::ScalarType dtype) {
  try {
    const Autocast scope(c10::DeviceType::CPU, {.dtype = dtype, .cache_enabled = false});
    const at::AutoGradMode with_gradients(true);
    candidate.run(dtype);
    return false;
  } catch (const c10::Error&) {
    return true;
  } catch (const std::exception&) {  // oneDNN's own
    return true;
  }
}

// What has been found so far, and the policies that it brought.
struct Found {
  std::mutex mutex;
  OpPolicies policies{c10::DeviceType::CPU};
  std::map<at::ScalarType, std::vector<std::string>> modules;
  std::atomic<bool> recurrent = false;
};

Found& found() {
  static auto* const instance = new Found;  // libtorch's dispatcher may be gone before static objects
  return *instance;
}

}  // namespace

std::vector<std::string> compute_unsupported_in_float32(at::ScalarType dtype) {
  auto& own = found();
  const std::lock_guard lock(own.mutex);
  const auto known = own.modules.find(dtype);
  if (known != own.modules.end()) return known->second;
  std::vector<std::string> modules;
  for (const Candidate& candidate : candidates()) {
    if (!fails(candidate, dtype)) continue;
    for (const char* op : candidate.operators) own.policies.set(op, CastPolicy::kFloat32);
    if (*candidate.module != '\0') modules.emplace_back(candidate.module);
    if (candidate.run == run_lstm) own.recurrent = true;
  }
  return own.modules.emplace(dtype, std::move(modules)).first->second;
}

bool recurrent_layers_need_float32() noexcept {
  return found().recurrent;
}

}  // namespace hasten::precision
