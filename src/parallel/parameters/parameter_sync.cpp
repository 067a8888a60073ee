// See parameter_sync.h.
#include "parallel/parameters/parameter_sync.h"

#include <torch/types.h>

#include <map>
#include <optional>
#include <utility>

#include "compat/versions.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"
#include "hasten/interception/interceptor.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/parameters/checksum.h"

namespace hasten::parallel {
namespace {

// Bytes a message: large enough that its start does not count, small enough that a model is not held twice.
constexpr int64_t kMessageBytes = 64 << 20;

at::Tensor as_bytes(const at::Tensor& contiguous, void* data) {
  if (contiguous.numel() == 0) return at::empty({0}, contiguous.options().dtype(at::kByte).requires_grad(false));
  return torch::from_blob(
      data, {static_cast<int64_t>(contiguous.nbytes())}, [contiguous](void*) {},
      contiguous.options().dtype(at::kByte).requires_grad(false));
}

struct DifferentValue {
  std::string name;
  std::vector<int> ranks;
};

// The first tensor of which ranks hold other values than rank 0, by checksums. Tensors without memory have none.
std::optional<DifferentValue> first_different_value(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                                                    const comm::Group& group) {
  std::vector<at::Tensor> values;
  for (const auto& [name, tensor] : tensors) values.push_back(tensor);
  // The call that asks for it (save_state, end_training) has a name that the program knows.
  const auto outer = comm::Purpose::current();
  const comm::Purpose purpose(outer.text != nullptr ? outer : comm::Purpose::Words{"comparison of parameters"});
  const auto all = group.all_gather(checksums(values));
  for (size_t i = 0; i < tensors.size(); ++i) {
    DifferentValue found{tensors[i].first, {}};
    for (size_t rank = 1; rank < all.size(); ++rank) {
      const bool equal = all[rank].numel() == all[0].numel() &&
                         all[rank].const_data_ptr<int64_t>()[i] == all[0].const_data_ptr<int64_t>()[i];
      if (!equal) found.ranks.push_back(static_cast<int>(rank));
    }
    if (!found.ranks.empty()) return found;
  }
  return std::nullopt;
}

std::string line(const char* kind, const std::string& name, const at::Tensor& tensor) {
  const char* frozen = tensor.is_leaf() && !tensor.requires_grad() && kind[0] == 'p' ? ", frozen" : "";
  return text(name, ": ", kind, ' ', tensor.scalar_type(), " [", join(tensor.sizes()), ']', frozen);
}

}  // namespace

std::vector<std::string> describe_module(const torch::nn::Module& module) {
  std::vector<std::string> lines;
  for (const auto& item : module.named_parameters()) lines.push_back(line("parameter", item.key(), item.value()));
  for (const auto& item : module.named_buffers()) lines.push_back(line("buffer", item.key(), item.value()));
  return lines;
}

std::optional<std::string> first_difference(const std::vector<std::vector<std::string>>& by_rank) {
  const auto& first = by_rank.front();
  for (size_t rank = 1; rank < by_rank.size(); ++rank) {
    const auto& other = by_rank[rank];
    for (size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
      const std::string a = i < first.size() ? first[i] : "nothing more";
      const std::string b = i < other.size() ? other[i] : "nothing more";
      if (a != b) return text("rank 0 has '", a, "', rank ", rank, " has '", b, "' (entry ", i, ')');
    }
  }
  return std::nullopt;
}

void check_same_module(const torch::nn::Module& module, const comm::Group& group) {
  const std::string mine = join(describe_module(module), "\n");
  const at::Tensor bytes = torch::empty({static_cast<int64_t>(mine.size())}, at::kByte);
  std::copy(mine.begin(), mine.end(), bytes.data_ptr<uint8_t>());
  std::vector<std::vector<std::string>> by_rank;
  const comm::Purpose purpose("prepare of a model");
  for (const at::Tensor& part : group.all_gather(bytes)) {
    std::istringstream lines(std::string(part.data_ptr<uint8_t>(), part.data_ptr<uint8_t>() + part.numel()));
    auto& entries = by_rank.emplace_back();
    for (std::string entry; std::getline(lines, entry);) entries.push_back(entry);
  }
  const auto difference = first_difference(by_rank);
  if (!difference) return;
  throw UsageError(Origin{"ddp", group.rank(), group.world_size()}, "the ranks prepare different models: ", *difference,
                   ". Build the same model on every rank.");
}

void check_equal_parameters(const torch::nn::Module& module, const comm::Group& group, bool inside) {
  // Cut parameters are memory here: the ranks of a group have equal parts.
  std::optional<interception::PassScope> pass;
  if (has_parts(module)) pass.emplace();
  const auto difference = first_different_value(module.named_parameters().pairs(), group);
  if (!difference) return;
  throw UsageError(Origin{"ddp", group.rank(), group.world_size()}, "'", difference->name,
                   "' is no longer the same on all ranks: rank ", join(difference->ranks),
                   " and rank 0 hold different values. ",
                   inside ? "Parameters were changed while gradients were being accumulated, before the ranks had "
                            "exchanged them, as by step() of an optimizer that was not prepared. Step the one that "
                            "prepare gave, which waits for the window's end."
                          : "Load on every rank, or before prepare; step the same optimizer everywhere.");
}

void check_equal_states(const torch::nn::Module& module, const comm::Group& group) {
  auto states = module.named_parameters().pairs();
  const auto buffers = module.named_buffers().pairs();
  states.insert(states.end(), buffers.begin(), buffers.end());
  const auto difference = first_different_value(states, group);
  if (!difference) return;
  throw UsageError(Origin{"ddp", group.rank(), group.world_size()}, "'", difference->name,
                   "' has other values on rank ", join(difference->ranks),
                   " than on rank 0, and sync_module_states is false. Give every rank the same values, or leave "
                   "sync_module_states on.");
}

at::Tensor pack_bytes(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> pieces;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor whole = tensor.detach().contiguous();
    // Read only: a mutable pointer would count as a write to a parameter of shared memory.
    const at::Tensor bytes = as_bytes(whole, const_cast<void*>(whole.const_data_ptr()));
    // Buffers of a model that lies on several devices travel together, from the first one's.
    pieces.push_back(bytes.to(tensors.front().device()));
  }
  return at::cat(pieces);
}

void unpack_bytes(const at::Tensor& bytes, const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  int64_t offset = 0;
  std::vector<at::Tensor> to, from;
  std::vector<std::pair<at::Tensor, at::Tensor>> staged_targets;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor target = tensor.detach();
    const at::Tensor staged = target.is_contiguous() ? target : at::empty_like(target, at::MemoryFormat::Contiguous);
    const auto size = static_cast<int64_t>(staged.nbytes());
    if (size == 0) continue;
    const at::Tensor place = as_bytes(staged, staged.data_ptr()), value = bytes.narrow(0, offset, size);
    if (place.device() == bytes.device()) {
      to.push_back(place);
      from.push_back(value);
    } else {
      place.copy_(value);
    }
    if (!staged.is_same(target)) staged_targets.emplace_back(target, staged);
    offset += size;
  }
  // One kernel for all on the bytes' device.
  if (!to.empty()) at::_foreach_copy_(to, from);
  for (const auto& [target, staged] : staged_targets) target.copy_(staged);
}

comm::Work<> broadcast_packed(const at::Tensor& bytes, const comm::Group& group, int root) {
  const comm::Purpose purpose("buffers of the model");
  return group.broadcast_async_(bytes, root);
}

void broadcast_tensors(const std::vector<at::Tensor>& tensors, const comm::Group& group, int root) {
  std::vector<at::Tensor> message;
  int64_t size = 0;
  const auto flush = [&] {
    if (message.empty()) return;
    const at::Tensor bytes = pack_bytes(message), before = bytes.clone();
    const comm::Purpose purpose("values of rank 0");
    group.broadcast_(bytes, root);
    // Ranks that agree keep their graphs: a backward sends the values of parameters that it finds unfrozen.
    if (group.rank() != root && !bytes.equal(before)) {
      unpack_bytes(bytes, message);
      for (const at::Tensor& tensor : message) compat::bump_version(tensor);
    }
    message.clear();
    size = 0;
  };
  for (const at::Tensor& tensor : tensors) {
    if (!message.empty() && message.front().device() != tensor.device()) flush();
    message.push_back(tensor);
    size += static_cast<int64_t>(tensor.nbytes());
    if (size >= kMessageBytes) flush();
  }
  flush();
}

void average_tensors(const std::vector<at::Tensor>& tensors, const comm::Group& group, bool took_part) {
  if (group.world_size() == 1) return;
  const torch::NoGradGuard no_grad;
  const at::Tensor num_ranks = at::full({}, took_part ? 1 : 0, at::kLong);
  const comm::Purpose purpose("average of parameters");
  group.all_reduce_(num_ranks);
  const auto count = num_ranks.item<int64_t>();
  if (count == 0) return;
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>> alike;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_floating_point() && !tensor.is_complex()) continue;
    alike[{tensor.device().str(), tensor.scalar_type()}].push_back(tensor.detach());
  }
  for (auto& [kind, members] : alike) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& member : members) flat.push_back(member.reshape({-1}));
    const at::Tensor mean = torch::cat(flat);
    if (count == group.world_size()) {
      group.all_reduce_(mean, comm::ReduceOp::kMean);
    } else {
      if (!took_part) mean.zero_();
      group.all_reduce_(mean);
      mean.div_(count);
    }
    int64_t begin = 0;
    for (const at::Tensor& member : members) {
      member.copy_(mean.narrow(0, begin, member.numel()).view(member.sizes()));
      begin += member.numel();
    }
  }
}

}  // namespace hasten::parallel
