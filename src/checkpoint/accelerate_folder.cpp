// Accelerate's files from the run's state; see accelerate_folder.h.
#include "checkpoint/accelerate_folder.h"

#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>
#include <torch/nn/module.h>

#include <cstring>
#include <map>
#include <set>

#include "checkpoint/parameter_places.h"
#include "checkpoint/parts.h"
#include "checkpoint/training_state.h"
#include "hasten/checkpoint/python_tensor.h"
#include "hasten/core/error.h"
#include "hasten/files/base/box.h"
#include "hasten/files/safetensors/safetensors_header.h"
#include "hasten/parallel/shard/sharding.h"
#include "hasten/process/random.h"

namespace hasten::checkpoint {
namespace {

using files::PythonValue;
using training::StateKind;

training::State cloned(const training::State& state) {
  if (state.is_tensor()) return state.tensor().detach().to(at::kCPU, state.tensor().scalar_type(), false, true);
  if (!state.is_map()) return state;
  training::State::Map map;
  for (const auto& [name, child] : state.map()) map.emplace_back(name, cloned(child));
  return map;
}

// Models as safetensors files laid out in held memory, as hasten's own are.
void add_safe_models(Checkpoints::Impl& own, const std::vector<ModelEntry>& models, SaveJob& job) {
  auto pieces = std::make_shared<std::vector<PieceInfo>>();
  std::vector<size_t> sizes;
  std::vector<at::Tensor> data;
  for (const auto& model : models) {
    std::set<std::tuple<const void*, std::vector<int64_t>, std::vector<int64_t>>> seen;
    std::vector<files::TensorInfo> infos;
    PlannedFile file;
    for (const auto& [name, tensor] : model.weights) {
      if (tensor.numel() > 0 &&
          !seen.emplace(tensor.const_data_ptr(), tensor.sizes().vec(), tensor.strides().vec()).second)
        continue;
      infos.push_back(info_of(name, tensor));
      file.pieces.push_back({pieces->size(), 0});
      PieceInfo piece{infos.back(), model_kind(model.index), files::whole_box(infos.back().shape), 0};
      piece.info.name = manifest_name(model.index, name);
      pieces->push_back(std::move(piece));
      data.push_back(tensor);
    }
    auto layout = files::lay_out_safetensors(infos, {{"format", "pt"}});
    for (size_t i = 0; i < infos.size(); ++i) file.pieces[i].position = layout.offsets[i];
    file.name = numbered("model", model.index, ".safetensors");
    file.head = std::move(layout.head);
    file.bytes = layout.file_bytes;
    sizes.push_back(file.bytes);
    job.files.push_back(std::move(file));
  }
  job.buffers = own.memory->buffers(sizes);
  job.memory = own.memory;
  for (size_t i = 0; i < job.files.size(); ++i) {
    std::memcpy(job.buffers[i], job.files[i].head.data(), job.files[i].head.size());
    for (const auto& [piece, position] : job.files[i].pieces) {
      const at::Tensor& tensor = data[piece];
      at::from_blob(job.buffers[i] + position, tensor.sizes(), tensor.options().device(at::kCPU).requires_grad(false))
          .copy_(tensor);
    }
  }
  job.pieces = std::move(pieces);
}

StateDict cloned(const StateDict& state) {
  StateDict out;
  out.versions = state.versions;
  for (const auto& [name, tensor] : state)
    out.set(name, tensor.detach().to(at::kCPU, tensor.scalar_type(), false, true));
  return out;
}

void add_optimizers(Checkpoints::Impl& own, SaveJob& job) {
  const auto name_of = manifest_names(own.run);
  size_t index = 0;
  for (const auto& [name, optimizer] : own.run.registry->optimizers()) {
    auto state = whole_optimizer_state(own.run, *optimizer, name_of);
    const std::string file = numbered("optimizer", index++, ".bin");
    if (job.rank != 0) continue;
    for (auto& item : state.state) item.second = cloned(training::State(item.second)).map();
    job.python_files.emplace_back(file, to_python(state));
  }
}

void add_objects(Checkpoints::Impl& own, SaveJob& job) {
  size_t scheduler = 0, custom = 0;
  for (const auto& object : own.run.registry->all()) {
    if (object.kind == StateKind::kScheduler) {
      job.python_files.emplace_back(numbered("scheduler", scheduler++, ".bin"),
                                    scheduler_to_python(object.state().value()));
    } else if (object.kind == StateKind::kScaler) {
      job.python_files.emplace_back("scaler.pt", scaler_to_python(object.state().value()));
    } else if (object.kind == StateKind::kCustom) {
      job.python_files.emplace_back(text("custom_checkpoint_", custom++, ".pkl"), to_python(cloned(object.state())));
    } else if (object.kind == StateKind::kLoader) {
      try {
        job.manifest.parts["loaders"][object.name] = training::split_tensors(object.state()).value;
      } catch (const UsageError&) {
        // A loader without an order has no position.
      }
    }
  }
}

}  // namespace

std::string numbered(const std::string& stem, size_t index, const std::string& suffix) {
  return index == 0 ? stem + suffix : stem + "_" + std::to_string(index) + suffix;
}

OptimizerState whole_optimizer_state(const RunParts& run, const torch::optim::Optimizer& optimizer,
                                     const ParameterNames& name_of) {
  require_known_parts(run, optimizer, "save_state in Accelerate's layout");
  auto state = optimizer_state(optimizer, name_of);
  const auto places = places_of(optimizer, name_of);
  if (run.sharding == nullptr || !run.sharding->steps(optimizer)) {
    gather_state(state, places);
    return state;
  }
  if (!steps_in_slices(state.type)) {
    throw UsageError(Origin{"checkpoint", run.process.rank(), run.process.world_size()}, "the state of ", state.type,
                     " is split over the ranks and has no form in Accelerate. Save with Layout::kHasten.");
  }
  std::map<std::string, Slots> whole;
  std::vector<std::string> order;
  for (const auto& piece : run.sharding->full_state(optimizer)) {
    const std::string name = name_of(piece.of);
    auto& slots = whole[name];
    if (slots.empty()) order.push_back(name);
    if (piece.name == "step") {
      slots.emplace_back("step", training::State(piece.tensor.item<int64_t>()));
    } else {
      slots.emplace_back(piece.name, training::State(piece.tensor));
    }
  }
  for (auto& [name, slots] : state.state) {  // parameters that are not split
    if (!whole.count(name)) {
      order.push_back(name);
      whole.emplace(name, slots);
    }
  }
  state.state.clear();
  for (const auto& name : order) state.state.emplace_back(name, whole.at(name));
  gather_state(state, places);
  return state;
}

void fill_accelerate_job(Checkpoints::Impl& own, const std::vector<ModelEntry>& of_run, const SaveOptions& options,
                         SaveJob& job) {
  const at::NoGradGuard no_grad;
  auto models = of_run;
  for (auto& model : models) model.weights = whole(model.weights, /*keep=*/job.rank == 0);
  job.has_manifest = false;
  job.pieces = std::make_shared<const std::vector<PieceInfo>>();
  job.manifest.writer = "hasten";
  job.manifest.save_id = job.save_id;
  job.manifest.world_size = job.world_size;
  job.manifest.strategy = "accelerate";
  job.manifest.step = own.counter->steps();
  job.manifest.iteration = own.iteration;
  if (job.rank == 0) {
    if (options.safe_serialization) {
      add_safe_models(own, models, job);
    } else {
      for (const auto& model : models) {
        job.python_files.emplace_back(numbered("pytorch_model", model.index, ".bin"), to_python(cloned(model.weights)));
      }
    }
    add_objects(own, job);
  }
  add_optimizers(own, job);
  PythonRandom random{process::capture_random_state(), own.counter->steps(), own.python_random, own.numpy_random};
  job.python_files.emplace_back(text("random_states_", job.rank, ".pkl"), to_python(random, seed_of(random.torch.cpu)));
}

}  // namespace hasten::checkpoint
