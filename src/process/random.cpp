// Default generators of all devices; see random.h.
#include "hasten/process/random.h"

#include <torch/types.h>

#include <cstring>
#include <mutex>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/process/device.h"

namespace hasten::process {
namespace {

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

at::Generator cuda_generator(int device) {
  return at::globalContext().defaultGenerator(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)));
}

[[noreturn]] void refuse(const std::string& what) {
  throw DataError({"state"}, "", "packed random state: ", what,
                  ". Give the tensor that pack(RandomState) made, unchanged.");
}

}  // namespace

uint64_t set_seed(const Process& process, uint64_t seed, const SeedOptions& options) {
  if (options.device_specific) seed += static_cast<uint64_t>(process.rank());
  torch::manual_seed(seed);
  if (options.reproducible || options.deterministic) {
    at::globalContext().setDeterministicCuDNN(true);
    at::globalContext().setBenchmarkCuDNN(false);
  }
  if (options.deterministic) at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  return seed;
}

RandomState capture_random_state() {
  RandomState state{state_of(at::detail::getDefaultCPUGenerator())};
  for (int device = 0; device < num_cuda_devices(); ++device) state.cuda.push_back(state_of(cuda_generator(device)));
  return state;
}

void restore_random_state(const RandomState& state) {
  if (static_cast<int>(state.cuda.size()) > num_cuda_devices()) {
    throw UsageError({"state"}, "the random state of ", state.cuda.size(), " CUDA device(s) cannot be restored where ",
                     num_cuda_devices(),
                     " are visible. Restore it on a machine with as many, or clear its cuda states.");
  }
  set_state(at::detail::getDefaultCPUGenerator(), state.cpu);
  for (size_t device = 0; device < state.cuda.size(); ++device) {
    set_state(cuda_generator(static_cast<int>(device)), state.cuda[device]);
  }
}

at::Tensor pack(const RandomState& state) {
  std::vector<at::Tensor> states = {state.cpu};
  states.insert(states.end(), state.cuda.begin(), state.cuda.end());
  std::vector<int64_t> header = {static_cast<int64_t>(states.size())};
  for (const auto& one : states) header.push_back(one.numel());
  const auto head = torch::empty({static_cast<int64_t>(header.size() * sizeof(int64_t))}, torch::kUInt8);
  std::memcpy(head.mutable_data_ptr(), header.data(), head.nbytes());
  states.insert(states.begin(), head);
  return torch::cat(states);
}

RandomState unpack_random_state(const at::Tensor& bytes) {
  const at::Tensor flat = bytes.contiguous().view(-1);
  if (flat.scalar_type() != torch::kUInt8) refuse(text("it is ", flat.scalar_type(), ", not Byte"));
  constexpr int64_t kWord = sizeof(int64_t);
  const auto word = [&](int64_t i) {
    if ((i + 1) * kWord > flat.numel())
      refuse(text("it ends after ", count_text(flat.numel(), "byte"), ", in its header"));
    int64_t value = 0;
    std::memcpy(&value, flat.const_data_ptr<uint8_t>() + i * kWord, kWord);
    return value;
  };
  const int64_t count = word(0);
  if (count < 1 || count > flat.numel()) refuse(text("it claims to hold ", count_text(count, "state")));
  std::vector<at::Tensor> states;
  int64_t offset = (1 + count) * kWord;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t length = word(1 + i);
    if (length < 0 || length > flat.numel() - offset) {
      refuse(text("state ", i, " has ", count_text(length, "byte"), ", but only ", flat.numel() - offset, " are left"));
    }
    states.push_back(flat.slice(0, offset, offset + length).clone());
    offset += length;
  }
  if (offset != flat.numel()) refuse(text(count_text(flat.numel() - offset, "byte"), " are left over"));
  RandomState state{states.front()};
  state.cuda.assign(states.begin() + 1, states.end());
  return state;
}

}  // namespace hasten::process
