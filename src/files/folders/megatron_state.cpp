// See megatron_state.h.
#include "files/folders/megatron_state.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>

#include "files/base/origin.h"
#include "hasten/core/text.h"
#include "hasten/files/base/box.h"
#include "hasten/files/base/cast.h"
#include "hasten/files/python/python_file.h"

namespace hasten::files {
namespace {

namespace fs = std::filesystem;
using core::Value;

constexpr const char* kStateRemedy =
    "Read weights alone (--only model), or save with --ckpt-format torch_dist and --dist-ckpt-optim-fully-reshardable, "
    "whose state has names.";
constexpr const char* kDistributedFile = "distrib_optim.pt";

template <class... Words>
[[noreturn]] void refuse_state(const std::string& path, const Words&... words) {
  throw UsageError(kOrigin, "the optimizer's state in '", path, "': ", words..., ". ", kStateRemedy);
}

// With mixed precision the optimizer itself is one deeper.
const PythonValue& inner_of(const PythonValue& optimizer) {
  const PythonValue* const inner = optimizer.find("optimizer");
  return inner != nullptr && inner->is_mapping() ? *inner : optimizer;
}

std::optional<double> single_number(const PythonValue* value) {
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return value->as_double();
  if (value->is_tensor() && numel_of(value->as_tensor().shape) == 1) return value->as_double();
  return std::nullopt;
}

bool has_decay(const PythonValue& group) {
  for (const char* const name : {"wd_mult", "pre_wd_mult"}) {
    if (const auto factor = single_number(group.find(name))) return *factor != 0;
  }
  return true;
}

bool is_expert(const PythonValue& group) {
  const PythonValue* const flag = group.find("is_expert_parallel");
  return flag != nullptr && flag->is_bool() && flag->as_bool();
}

std::optional<double> step_in(const PythonValue& inner) {
  const PythonValue* const states = inner.find("state");
  if (states != nullptr && states->is_mapping()) {
    if (const auto step = single_number(states->find("common_step"))) return step;
    for (const auto& [number, slots] : states->as_pairs()) {
      if (!slots.is_mapping()) continue;
      if (const auto step = single_number(slots.find("step"))) return step;
    }
  }
  for (const PythonValue& group : inner["param_groups"].as_items()) {
    if (const auto step = single_number(group.find("step"))) return step;
  }
  return std::nullopt;
}

// A parameter of a rank: its virtual stage, and its place in the list of that.
struct ParameterPlace {
  size_t chunk = 0, at = 0;
};

const std::pair<std::string, PythonTensor>& parameter_at(const MegatronRankFile& file, const ParameterPlace& place) {
  return file.chunks[place.chunk][place.at];
}

std::vector<ParameterPlace> places_of_group(const MegatronRankFile& file, bool is_only, bool decayed) {
  std::vector<ParameterPlace> places;
  for (size_t chunk = 0; chunk < file.chunks.size(); ++chunk) {
    for (size_t at = 0; at < file.chunks[chunk].size(); ++at) {
      const auto& [name, tensor] = file.chunks[chunk][at];
      if (is_only || is_decayed(name, tensor.shape.size()) == decayed) places.push_back({chunk, at});
    }
  }
  return places;
}

std::vector<NamedTensors>& chunks_of_slot(MegatronRankState& state, const MegatronRankFile& file,
                                          const std::string& slot) {
  auto& chunks = state.slots[slot];
  chunks.resize(file.chunks.size());
  return chunks;
}

// ---- State by numbers, in the file of the model.

void add_numbered(MegatronRankState& state, const MegatronRankFile& file, const PythonValue& slots, int64_t number,
                  const ParameterPlace& place) {
  const auto& [name, parameter] = parameter_at(file, place);
  for (const auto& [slot, value] : slots.as_pairs()) {
    if (!slot.is_string() || slot.as_string() == "step" || !value.is_tensor()) continue;
    if (value.as_tensor().shape != parameter.shape) {
      refuse_state(file.path, slot.as_string(), " of parameter ", number, " has the shape [",
                   join(value.as_tensor().shape), "], and '", name, "', which is in its place, [",
                   join(parameter.shape), "], so that its parameters lie in another order than the model's");
    }
    chunks_of_slot(state, file, slot.as_string())[place.chunk].emplace_back(name, value.as_tensor());
  }
}

// Values in float32 of the parameters of lower precision, group by group.
void add_masters(MegatronRankState& state, const MegatronRankFile& file, const PythonValue& masters,
                 std::vector<ParameterPlace> places) {
  std::erase_if(places, [&](const ParameterPlace& place) {
    const Dtype dtype = parameter_at(file, place).second.dtype;
    return dtype != Dtype::kBFloat16 && dtype != Dtype::kFloat16;
  });
  if (!masters.is_sequence() || masters.size() != places.size()) return;
  for (size_t i = 0; i < places.size(); ++i) {
    const auto& [name, parameter] = parameter_at(file, places[i]);
    if (!masters[i].is_tensor() || masters[i].as_tensor().shape != parameter.shape) return;
    chunks_of_slot(state, file, "param")[places[i].chunk].emplace_back(name, masters[i].as_tensor());
  }
}

void read_numbered(MegatronRankState& state, const MegatronRankFile& file, const PythonValue& optimizer) {
  const PythonValue& inner = inner_of(optimizer);
  const PythonValue &states = inner["state"], &groups = inner["param_groups"];
  const PythonValue* const masters = optimizer.find("fp32_from_fp16_params");
  for (size_t i = 0; i < groups.size(); ++i) {
    const PythonValue& numbers = groups[i]["params"];
    const auto places = places_of_group(file, groups.size() == 1, has_decay(groups[i]));
    if (numbers.size() != places.size()) {
      refuse_state(file.path, "group ", i, " has ", numbers.size(), " parameters, and the model ", places.size(),
                   groups.size() == 1     ? ""
                   : has_decay(groups[i]) ? " that are decayed"
                                          : " biases and tensors of one dimension");
    }
    for (size_t k = 0; k < places.size(); ++k) {
      const int64_t number = numbers[k].as_int();
      const PythonValue* const slots = states.find(number);
      if (slots != nullptr && slots->is_mapping()) add_numbered(state, file, *slots, number, places[k]);
    }
    if (masters != nullptr && masters->is_sequence() && i < masters->size())
      add_masters(state, file, (*masters)[i], places);
  }
}

// ---- State in the buffers of a distributed optimizer.

int64_t next_start(int64_t at) {
  return (at + 63) / 64 * 64;
}

bool is_flag_set(const Value& arguments, const char* name) {
  const Value* const value = arguments.find(name);
  return value != nullptr && value->is_bool() && value->as_bool();
}

int64_t integer_argument(const Value& arguments, const char* name, int64_t otherwise) {
  const Value* const value = arguments.find(name);
  return value != nullptr && value->is_int() ? value->as_int() : otherwise;
}

// Elements after which a bucket ends; 0: none does.
int64_t most_in_bucket(const MegatronRankFile& file, size_t chunk) {
  if (file.stage > 0 || chunk > 0 || !is_flag_set(file.arguments, "overlap_grad_reduce")) return 0;
  const int64_t ranks = integer_argument(file.arguments, "data_parallel_size", 1) *
                        integer_argument(file.arguments, "context_parallel_size", 1);
  return integer_argument(file.arguments, "ddp_bucket_size", std::max<int64_t>(40'000'000, 1'000'000 * ranks));
}

struct BufferPlan {
  /// The first element of each parameter.
  std::vector<int64_t> begin = {};
  int64_t numel = 0;
};

// Parameters lie in a buffer the last one first, each at a multiple of 64 of its bucket. The file leaves out what pads
// a bucket's end. The table that the first and the last stage share has a bucket of its own.
BufferPlan plan_buffer(const MegatronRankFile& file, size_t chunk) {
  const auto& parameters = file.chunks[chunk];
  const bool shares = integer_argument(file.arguments, "pipeline_model_parallel_size", 1) > 1 &&
                      !is_flag_set(file.arguments, "untie_embeddings_and_output_weights");
  const int64_t most = most_in_bucket(file, chunk);
  BufferPlan plan;
  plan.begin.resize(parameters.size());
  int64_t bucket = 0, end = 0;
  bool is_empty = true;
  const auto close = [&](int64_t at) { bucket += at, end = 0, is_empty = true; };
  for (size_t i = parameters.size(); i-- > 0;) {
    const auto& [name, tensor] = parameters[i];
    const bool is_shared = shares && (name == "embedding.word_embeddings.weight" || name == "output_layer.weight");
    if (is_shared && !is_empty) close(next_start(end));
    plan.begin[i] = bucket + next_start(end);
    end = next_start(end) + numel_of(tensor.shape);
    is_empty = false;
    if (is_shared || (most > 0 && end >= most)) close(end);
  }
  plan.numel = bucket + end;
  return plan;
}

PythonTensor buffer_piece(const PythonTensor& buffer, int64_t begin, const std::vector<int64_t>& shape) {
  PythonTensor piece = buffer;
  piece.offset += begin * buffer.stride[0];
  piece.shape = shape;
  piece.stride = contiguous_strides(shape);
  return piece;
}

// Compares the first and the last row of the values in float32 with the model's own, which are these, rounded.
bool goes_with(const PythonTensor& exact, const PythonTensor& parameter) {
  if (parameter.shape.empty() || numel_of(parameter.shape) == 0 || !can_cast(exact.dtype, parameter.dtype)) return true;
  for (const int64_t row : {int64_t{0}, parameter.shape[0] - 1}) {
    Box box = whole_box(parameter.shape);
    box.offset[0] = row;
    box.size[0] = 1;
    const auto count = static_cast<size_t>(numel_of(box));
    std::string wide(count * element_bytes(exact.dtype), '\0');
    std::string own(count * element_bytes(parameter.dtype), '\0'), expected = own;
    read_tensor(exact, box, wide.data());
    read_tensor(parameter, box, own.data());
    cast_elements(exact.dtype, wide.data(), parameter.dtype, expected.data(), count);
    if (own != expected) return false;
  }
  return true;
}

void add_buffer(MegatronRankState& state, const MegatronRankFile& file, const std::string& path, size_t chunk,
                const PythonValue& tensors) {
  const BufferPlan plan = plan_buffer(file, chunk);
  for (const auto& [slot, value] : tensors.as_pairs()) {
    if (!slot.is_string() || !value.is_tensor() || value.as_tensor().shape.size() != 1) continue;
    const PythonTensor& buffer = value.as_tensor();
    if (buffer.shape[0] != plan.numel) {
      refuse_state(path, "the buffer of virtual stage ", chunk, " has ", buffer.shape[0],
                   " elements, and the model's parameters take ", plan.numel);
    }
    auto& own = chunks_of_slot(state, file, slot.as_string())[chunk];
    for (size_t i = 0; i < plan.begin.size(); ++i) {
      const auto& [name, parameter] = file.chunks[chunk][i];
      own.emplace_back(name, buffer_piece(buffer, plan.begin[i], parameter.shape));
      if (slot.as_string() != "param" || goes_with(own.back().second, parameter)) continue;
      refuse_state(path, "at the place of '", name, "' there are other values than the model's");
    }
  }
}

void read_distributed(MegatronRankState& state, const MegatronRankFile& file) {
  const std::string path = (fs::path(file.path).parent_path() / kDistributedFile).string();
  if (!fs::exists(path)) {
    throw UsageError(kOrigin, "the optimizer's state of '", file.path,
                     "' is missing: a distributed optimizer has it in ", kDistributedFile,
                     ". Get that file, or read weights alone (--only model).");
  }
  const PythonFile opened = PythonFile::open(path);
  const PythonValue* value = &opened.value();
  if (value->is_sequence() && value->size() == 1) value = &(*value)[0];
  if (!value->is_mapping()) refuse_state(path, "it is of several optimizers, each with parameters of its own");
  const PythonValue* const coalesced = value->find("buckets_coalesced");
  if (coalesced == nullptr || !coalesced->is_bool() || !coalesced->as_bool())
    refuse_state(path, "it is of an older form, bucket by bucket");
  for (size_t chunk = 0; chunk < file.chunks.size(); ++chunk) {
    const PythonValue* const buffer = value->find(static_cast<int64_t>(chunk));
    if (buffer == nullptr || !buffer->is_mapping() || buffer->size() != 1 ||
        value->find(static_cast<int64_t>(file.chunks.size())) != nullptr) {
      refuse_state(path, "expected a buffer of one dtype for each of ", file.chunks.size(), " virtual stages");
    }
    const auto& [dtype, tensors] = buffer->as_pairs().front();
    // Several optimizers or steps of the older kind have a list here.
    if (!tensors.is_mapping()) refuse_state(path, "it is of an older form, bucket by bucket");
    add_buffer(state, file, path, chunk, tensors);
  }
}

}  // namespace

bool is_decayed(const std::string& name, size_t num_dims) {
  return num_dims != 1 && !name.ends_with(".bias");
}

MegatronGroups megatron_groups(const PythonValue& optimizer, const std::string& path) {
  const PythonValue& inner = inner_of(optimizer);
  const PythonValue* const groups = inner.find("param_groups");
  if (groups == nullptr || !groups->is_sequence())
    refuse_state(path, "it has no param_groups, or is of several optimizers");
  MegatronGroups found;
  for (const PythonValue& group : groups->as_items()) {
    PythonValue& own = has_decay(group) ? found.decayed : found.others;
    const PythonValue* const numbers = group.find("params");
    const bool is_empty = numbers != nullptr && numbers->is_sequence() && numbers->size() == 0;
    if (is_empty && !own.is_none()) continue;
    if (is_expert(group) || !own.is_none())
      refuse_state(path,
                   "its groups are not those of weight decay alone (no_weight_decay_cond, scale_lr_cond, experts)");
    own = group;
  }
  const PythonValue* const states = inner.find("state");
  const bool has_not_stepped = states != nullptr && states->is_mapping() && states->size() == 0;
  const auto step = step_in(inner);
  if (!step && !has_not_stepped) fail_data(path, "the optimizer's state has no step.");
  found.step = static_cast<int64_t>(step.value_or(0));
  return found;
}

MegatronRankState megatron_state(const MegatronRankFile& file, const PythonValue& optimizer) {
  MegatronRankState state{.groups = megatron_groups(optimizer, file.path)};
  // A distributed optimizer leaves its state out.
  const PythonValue* const states = inner_of(optimizer).find("state");
  if (states != nullptr && states->is_mapping()) {
    read_numbered(state, file, optimizer);
  } else {
    read_distributed(state, file);
  }
  return state;
}

}  // namespace hasten::files
