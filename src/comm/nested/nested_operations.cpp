// The operations on nested structures, on the flat list of their tensors; see nested_operations.h.
#include "hasten/comm/nested/nested_operations.h"

#include <torch/types.h>

#include <algorithm>

#include "comm/group/origin.h"
#include "hasten/core/error.h"

namespace hasten::comm {
namespace detail {
namespace {

/// Writes the structure down while walking it.
class Describer final : public Walker {
 public:
  explicit Describer(StructureDetail detail) : detail_(detail) {}

  void tensor(at::Tensor& tensor) override {
    for (Bracket& bracket : open_) bracket.has_tensor = true;
    if (detail_ == StructureDetail::kNames) return element("tensor");
    std::vector<std::string> sizes;
    for (const int64_t size : tensor.sizes()) sizes.push_back(std::to_string(size));
    if (detail_ == StructureDetail::kRows) {
      if (sizes.empty()) sizes.emplace_back();  // gather makes a row of a scalar
      sizes.front() = "*";
    }
    element(hasten::text(tensor.scalar_type(), "[", join(sizes), "]"));
  }
  void open(char bracket) override {
    element(std::string(1, bracket));
    open_.push_back({text_.size()});
    first_ = true;
  }
  void name(std::string_view key) override {
    element(hasten::text(key, ": "));
    first_ = true;
  }
  void leaf() override { element("-"); }
  void none() override { element("none"); }
  void close(char bracket) override {
    // Lists of objects are gathered and sent whatever their lengths.
    const Bracket opened = open_.back();
    open_.pop_back();
    const bool any_length = detail_ == StructureDetail::kRows || detail_ == StructureDetail::kShapesOfTensors;
    if (any_length && bracket == ']' && !opened.has_tensor) text_.replace(opened.begin, std::string::npos, "*");
    text_ += bracket;
    first_ = false;
  }

  const std::string& text() const { return text_; }

 private:
  void element(const std::string& word) {
    if (!first_) text_ += ", ";
    first_ = false;
    text_ += word;
  }

  struct Bracket {
    size_t begin;
    bool has_tensor = false;
  };

  StructureDetail detail_;
  std::vector<Bracket> open_;
  bool first_ = true;
  std::string text_;
};

at::Tensor padded(const at::Tensor& tensor, int64_t dim, int64_t amount, const PadOptions& options) {
  // constant_pad_nd takes (before, after) pairs from the last dimension to the first.
  std::vector<int64_t> amounts(2 * (tensor.dim() - dim), 0);
  amounts[amounts.size() - (options.pad_first ? 2 : 1)] = amount;
  return at::constant_pad_nd(tensor, amounts, options.pad_index);
}

}  // namespace

std::string describe(const std::function<void(Walker&)>& walk, StructureDetail detail) {
  Describer describer(detail);
  walk(describer);
  return describer.text();
}

void agree(const Group& group, const char* operation, const std::string& structure, const Site& site) {
  const at::Tensor mine = torch::tensor(std::vector<uint8_t>(structure.begin(), structure.end()), torch::kUInt8);
  const Tensors texts = group.all_gather(mine, site);
  std::vector<std::string> structures;
  for (const at::Tensor& text : texts) {
    structures.emplace_back(reinterpret_cast<const char*>(text.const_data_ptr<uint8_t>()), text.numel());
  }
  const auto other = std::find_if(structures.begin(), structures.end(),
                                  [&](const std::string& text) { return text != structures.front(); });
  if (other == structures.end()) return;
  throw CommError(origin_of(group), operation, operation, " at ", site.file_name(), ":", site.line(),
                  ": the ranks do not pass the same: rank 0 passes ", structures.front(), ", rank ",
                  other - structures.begin(), " passes ", *other,
                  ". Pass the same structure and settings on every rank (sizes shown as * may differ).");
}

Tensors gather(const Group& group, const Tensors& tensors, const Site& site) {
  const at::NoGradGuard no_grad;
  Tensors gathered;
  for (const at::Tensor& tensor : tensors) {
    gathered.push_back(at::cat(group.all_gather(tensor.dim() == 0 ? tensor.reshape({1}) : tensor, site)));
  }
  return gathered;
}

Tensors broadcast(const Group& group, const Tensors& tensors, int from, const Site& site) {
  if (from < 0 || from >= group.world_size()) {
    throw UsageError(origin_of(group), "broadcast from rank ", from, ": the group '", group.options().name, "' has ",
                     group.world_size(), " rank(s). Give a rank from 0 to ", group.world_size() - 1, ".");
  }
  const at::NoGradGuard no_grad;
  Tensors received;
  for (const at::Tensor& tensor : tensors) {
    received.push_back(group.rank() == from ? tensor.clone() : at::empty_like(tensor));
    group.broadcast_(received.back(), from, site);
  }
  return received;
}

Tensors reduce(const Group& group, const Tensors& tensors, const ReduceOptions& options, const Site& site) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors) {
    if (options.scale != 1.0 && !tensor.is_floating_point() && !tensor.is_complex()) {
      throw UsageError(origin_of(group), "reduce with scale ", options.scale, " of a ", tensor.scalar_type(),
                       " tensor; only floating and complex tensors can be scaled. Convert it first.");
    }
  }
  Tensors reduced;
  for (const at::Tensor& tensor : tensors) {
    reduced.push_back(tensor.clone());
    group.all_reduce_(reduced.back(), options.op, site);
    if (options.scale != 1.0) reduced.back().mul_(options.scale);
  }
  return reduced;
}

const char* reduction_name(ReduceOp op) noexcept {
  return name_of(op);
}

Tensors pad(const Group& group, const Tensors& tensors, const PadOptions& options, const Site& site) {
  const auto dim_of = [&](const at::Tensor& tensor) {
    return options.dim < 0 ? options.dim + tensor.dim() : options.dim;
  };
  const auto applies = [&](const at::Tensor& tensor) { return dim_of(tensor) >= 0 && dim_of(tensor) < tensor.dim(); };
  std::vector<int64_t> sizes;
  for (const at::Tensor& tensor : tensors) sizes.push_back(applies(tensor) ? tensor.size(dim_of(tensor)) : -1);

  const Tensors all = group.all_gather(torch::tensor(sizes, torch::kInt64), site);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].numel() == static_cast<int64_t>(tensors.size())) continue;
    throw CommError(origin_of(group), "pad_across_processes", "pad_across_processes: this rank passes ", tensors.size(),
                    " tensor(s), rank ", rank, " passes ", all[rank].numel(),
                    ". Pass the same structure on every rank.");
  }
  Tensors result;
  for (size_t i = 0; i < tensors.size(); ++i) {
    int64_t most = sizes[i];
    for (const at::Tensor& of_rank : all) most = std::max(most, of_rank.const_data_ptr<int64_t>()[i]);
    const bool enough = sizes[i] < 0 || sizes[i] == most;
    result.push_back(enough ? tensors[i] : padded(tensors[i], dim_of(tensors[i]), most - sizes[i], options));
  }
  return result;
}

Tensors concatenate(const std::vector<Tensors>& values, int64_t dim, const std::vector<std::string>& structures) {
  const Origin origin{"comm"};
  if (values.empty()) throw UsageError(origin, "concatenate of no values; at least one is needed.");
  for (size_t i = 1; i < structures.size(); ++i) {
    if (structures[i] == structures[0]) continue;
    throw UsageError(origin, "concatenate of different structures: value 0 is ", structures[0], ", value ", i, " is ",
                     structures[i], ". All values need the same structure.");
  }
  Tensors joined;
  for (size_t i = 0; i < values[0].size(); ++i) {
    Tensors parts;
    for (const Tensors& value : values) parts.push_back(value[i]);
    const bool scalar = std::any_of(parts.begin(), parts.end(), [](const at::Tensor& part) { return part.dim() == 0; });
    if (scalar) {
      throw UsageError(origin, "concatenate of scalars (tensor ", i, " of ", structures[0],
                       "); tensors need at least one dimension. Unsqueeze them first.");
    }
    joined.push_back(at::cat(parts, dim));
  }
  return joined;
}

int64_t find_batch_size(const Tensors& tensors, const std::string& structure) {
  if (!tensors.empty() && tensors[0].dim() > 0) return tensors[0].size(0);
  throw UsageError({"comm"}, "no batch size in ", structure, ": ",
                   tensors.empty() ? "it holds no tensor" : "its first tensor is a scalar",
                   "; the first tensor's first dimension is the batch. Put the batched tensor first.");
}

at::Tensor slice(const at::Tensor& tensor, int64_t begin, int64_t end) {
  if (tensor.dim() > 0) return tensor.slice(0, begin, end);
  throw UsageError({"comm"}, "slice [", begin, ", ", end,
                   ") of a scalar tensor; it has no rows. Unsqueeze it or leave it out of the structure.");
}

}  // namespace detail
}  // namespace hasten::comm
