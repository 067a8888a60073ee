// Targets of a bulk read over tensors; see run_reader.h.
#include "checkpoint/run_reader.h"

#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>

#include "compat/versions.h"
#include "hasten/checkpoint/python_tensor.h"
#include "hasten/comm/group/group.h"
#include "hasten/compat/storage_watch.h"
#include "hasten/core/error.h"
#include "hasten/core/hash.h"
#include "hasten/files/base/box.h"
#include "hasten/parallel/layout/placement.h"

namespace hasten::checkpoint {
namespace {

at::Tensor empty_of(const files::TensorInfo& info, const std::vector<int64_t>& sizes) {
  return at::empty(sizes, at::TensorOptions().dtype(torch_dtype(info.dtype)));
}

// Dimensions by their strides, the slowest first: the order of a dense tensor's memory.
std::vector<int64_t> memory_order(const at::Tensor& like) {
  std::vector<int64_t> order(static_cast<size_t>(like.dim()));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return like.stride(a) > like.stride(b); });
  return order;
}

}  // namespace

const files::TensorInfo& RunReader::info(const std::string& name) const {
  if (infos_.empty()) {
    for (const auto& tensor : manifest_.tensors) infos_.emplace(tensor.info.name, &tensor.info);
  }
  const auto found = infos_.find(name);
  if (found == infos_.end()) throw InternalError(Origin{"checkpoint"}, "the saved state has no '", name, "'");
  return *found->second;
}

void RunReader::into(const at::Tensor& target, const std::string& name, bool through_copy) {
  if (parallel::placed_by(target) != nullptr) {
    return into([target](const at::Tensor& whole) { parallel::copy_part_(target, whole); }, name);
  }
  const auto& own = info(name);
  const at::Tensor plain = target.detach();
  files::BulkTarget out{{name, files::whole_box(own.shape)}};
  const bool is_direct = !through_copy && plain.device().is_cpu() && plain.is_contiguous() &&
                         plain.scalar_type() == torch_dtype(own.dtype);
  if (is_direct) {
    out.begin = [plain] { return plain.mutable_data_ptr(); };
    out.end = [target] {
      compat::bump_version(target);
      compat::notify_changed(target);
    };
  } else {
    const auto read = std::make_shared<at::Tensor>();
    out.begin = [read, &own] {
      *read = empty_of(own, own.shape);
      return read->mutable_data_ptr();
    };
    out.end = [read, plain, target, writes = through_copy ? nullptr : writes_] {
      if (writes && writes->put(target, *read)) {
        compat::bump_version(target);
        compat::notify_changed(target);
      } else {
        plain.copy_(*read);
      }
      *read = at::Tensor();
    };
  }
  shared_.push_back(std::move(out));
}

void RunReader::into(const std::function<void(const at::Tensor&)>& put, const std::string& name) {
  const auto& own = info(name);
  files::BulkTarget out{{name, files::whole_box(own.shape)}};
  const auto read = std::make_shared<at::Tensor>();
  out.begin = [read, &own] {
    *read = empty_of(own, own.shape);
    return read->mutable_data_ptr();
  };
  out.end = [read, put] {
    put(*read);
    *read = at::Tensor();
  };
  shared_.push_back(std::move(out));
}

void RunReader::whole(const std::string& name, bool is_own) {
  if (made_.count(name)) return;
  const auto& own = info(name);
  const at::Tensor tensor = empty_of(own, own.shape);
  made_.emplace(name, tensor);
  auto& list = is_own ? own_ : shared_;
  list.push_back({{name, files::whole_box(own.shape)}, [tensor] { return tensor.mutable_data_ptr(); }, {}});
}

void RunReader::part(const std::string& name, const at::Tensor& parameter) {
  if (made_.count(name)) return;
  const at::Tensor own = empty_of(info(name), parameter.sizes().vec());
  made_.emplace(name, own);
  into([own, parameter](const at::Tensor& whole) { own.copy_(parallel::part_as(parameter, whole)); }, name);
}

void RunReader::box(const std::string& name, const at::Tensor& like, const files::Box& place, const at::Tensor& part) {
  const auto& own = info(name);
  for (const auto& [whole, in_part] : parallel::part_boxes(like, place)) {
    at::Tensor target = part;
    for (int64_t d = 0; d < part.dim(); ++d) {
      target = target.narrow(d, in_part.offset[static_cast<size_t>(d)], in_part.size[static_cast<size_t>(d)]);
    }
    if (target.is_contiguous()) {
      own_.push_back({{name, whole}, [target] { return target.mutable_data_ptr(); }, {}});
      continue;
    }
    const auto read = std::make_shared<at::Tensor>();
    own_.push_back({{name, whole},
                    [read, &own, sizes = whole.size] {
                      *read = empty_of(own, sizes);
                      return read->mutable_data_ptr();
                    },
                    [read, target] { target.copy_(*read); }});
  }
}

void RunReader::box(const std::string& name, const files::Box& place, const at::Tensor& target) {
  own_.push_back({{name, place}, [target] { return target.mutable_data_ptr(); }, {}});
}

void RunReader::slice(const std::string& name, const at::Tensor& like, int64_t begin, int64_t end) {
  const at::Tensor flat = empty_of(info(name), {end - begin});
  made_[name] = flat;
  const auto order = memory_order(like);
  std::vector<int64_t> laid, back(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    laid.push_back(like.size(order[i]));
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  int64_t at = 0;
  for (const auto& box : files::boxes_of_range(laid, begin, end)) {
    const int64_t count = files::numel_of(box);
    files::Box requested{std::vector<int64_t>(laid.size()), std::vector<int64_t>(laid.size())};
    for (size_t i = 0; i < order.size(); ++i) {
      requested.offset[static_cast<size_t>(order[i])] = box.offset[i];
      requested.size[static_cast<size_t>(order[i])] = box.size[i];
    }
    this->box(name, like, requested, flat.narrow(0, at, count).view(box.size).permute(back));
    at += count;
  }
}

std::string RunReader::shared_digest() const {
  std::string all = text(manifest_.tensors.size(), '\n');
  for (const auto& file : manifest_.files)
    all +=
        text(std::filesystem::path(file.name).filename().string(), ' ', file.bytes, ' ', file.header_xxh3.hex(), '\n');
  for (const auto& target : shared_) all += target.want.name + files::describe(target.want.box) + "\n";
  return core::xxh3_128(all).hex();
}

void RunReader::run(const std::vector<files::BulkTarget>& targets, const comm::Group* share,
                    std::vector<std::string>& damaged) {
  files::BulkReadOptions options{.verify = verify_};
  if (share != nullptr && share->world_size() > 1) {
    options.num_threads = 1;
    const int64_t count = share->world_size(), index = share->rank();
    options.share = {static_cast<int>(index), static_cast<int>(count),
                     [share, count, index](char* parts, size_t part_bytes) {
                       const auto bytes = static_cast<int64_t>(part_bytes);
                       const at::Tensor all = at::from_blob(parts, {count * bytes}, at::kByte);
                       share->all_gather_into_(all, all.narrow(0, index * bytes, bytes));
                     }};
  }
  const auto report = files::read_boxes(manifest_, folder_, targets, options);
  bytes_read_ += report.bytes_read;
  damaged.insert(damaged.end(), report.damaged.begin(), report.damaged.end());
}

void RunReader::read(const comm::Group* share) {
  const at::NoGradGuard no_grad;
  std::vector<std::string> damaged;
  run(shared_, share, damaged);
  run(own_, nullptr, damaged);
  writes_->finish();
  shared_.clear();
  own_.clear();
  if (damaged.empty()) return;
  throw DataError(Origin{"checkpoint"}, folder_, "'", folder_, "' is damaged: ", hasten::join(damaged, "; "),
                  ". What has been read of it may stand in the parameters. Load another checkpoint.");
}

at::Tensor RunReader::take(const std::string& name) {
  const auto found = made_.find(name);
  if (found == made_.end()) throw InternalError(Origin{"checkpoint"}, "'", name, "' was not asked for");
  at::Tensor tensor = std::move(found->second);
  made_.erase(found);
  return tensor;
}

}  // namespace hasten::checkpoint
