// See reducer.h.
#include "parallel/ddp/reducer.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "parallel/ddp/replica.h"

namespace hasten::parallel {
namespace {

std::vector<ParameterInfo> infos(const std::vector<std::string>& names,
                                 const std::vector<at::Tensor>& parameters) {
  std::vector<ParameterInfo> list;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    list.push_back({names[i], parameter.numel(), static_cast<int64_t>(parameter.nbytes()),
                    parameter.scalar_type(), parameter.device()});
  }
  return list;
}

}  // namespace

Reducer::Reducer(std::vector<std::string> names, std::vector<at::Tensor> parameters,
                 std::vector<at::Tensor> buffers, comm::Group group, const DdpOptions& options)
    : names_(std::move(names)),
      buffers_(std::move(buffers)),
      // The buckets were agreed upon when the module was compared; asking again in every step would only
      // cost.
      group_(group.with_check(false)),
      hook_(options.comm_hook),
      plan_(plan_buckets(infos(names_, parameters), options.buckets)),
      places_(parameters.size()),
      logger_("ddp", {group.rank(), group.world_size()}) {
  for (size_t bucket = 0; bucket < plan_.size(); ++bucket) {
    std::vector<at::Tensor> members;
    for (size_t index = 0; index < plan_[bucket].size(); ++index) {
      members.push_back(parameters[plan_[bucket][index]]);
      places_[plan_[bucket][index]] = {bucket, index};
    }
    buckets_.emplace_back(std::move(members), group_);
  }
}

void Reducer::on_gradient(size_t parameter) {
  if (holds_ > 0) return;
  // Another number means that the last backward was left by an exception before its end: begin anew.
  if (backward_ != torch::autograd::get_current_graph_task_id()) begin();
  const Place place = places_[parameter];
  buckets_[place.bucket].take(place.index, 1.0 / group_.world_size());
  launch_ready();
}

void Reducer::begin() {
  backward_ = torch::autograd::get_current_graph_task_id();
  next_bucket_ = 0;
  for (Bucket& bucket : buckets_) bucket.begin_step();
  torch::autograd::Engine::get_default_engine().queue_callback([this] { finish(); });
  if (buffers_.empty()) return;
  packed_buffers_ = pack_bytes(buffers_);
  buffers_work_ = group_.broadcast_async_(packed_buffers_, 0);
}

void Reducer::launch_ready() {
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].complete())
    buckets_[next_bucket_++].launch(group_, hook_);
}

void Reducer::finish() {
  for (Bucket& bucket : buckets_) bucket.take_rest(1.0 / group_.world_size());
  launch_ready();
  ++num_steps_;
  std::vector<std::string> unused;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (const size_t index : buckets_[bucket].finish()) unused.push_back(names_[plan_[bucket][index]]);
  }
  if (buffers_work_) {
    buffers_work_->wait();
    buffers_work_.reset();
    if (group_.rank() != 0) unpack_bytes(packed_buffers_, buffers_);
  }
  backward_.reset();
  if (!unused.empty()) warn_unused(unused);
}

void Reducer::warn_unused(const std::vector<std::string>& names) {
  if (warned_) return;
  warned_ = true;
  const size_t others = names.size() - 1;
  const std::string more =
      others == 0 ? "" : text(" and ", others, " more parameter", others == 1 ? "" : "s");
  logger_.warning(text('\'', names.front(), '\'', more, " got no gradient in step ", num_steps_,
                       " on any rank; they keep their values."));
}

}  // namespace hasten::parallel
