// See layout.h.
#include "hasten/parallel/layout/layout.h"

#include <utility>

#include "hasten/comm/mesh/device_mesh.h"
#include "hasten/core/error.h"
#include "hasten/process/default_generators.h"

namespace hasten::parallel {
namespace {

plan::LayoutSizes sizes_of(const ParallelOptions& options, int world_size) {
  plan::LayoutSizes sizes{.pp = options.pp,
                          .dp_replicate = options.dp_replicate,
                          .dp_shard = options.dp_shard,
                          .cp = options.cp,
                          .sp = options.sp,
                          .tp = options.tp};
  if (sizes == plan::LayoutSizes{}) sizes.dp_replicate = world_size;
  return plan::fit_to_world(sizes, world_size);
}

// All ranks of the group go on with the states of its first one.
void share_random_state(const comm::Group& group, c10::Device device) {
  process::DefaultGenerators generators(device);
  const auto states = generators.states();
  for (const at::Tensor& state : states) group.broadcast_(state, 0);
  generators.set_states(states);
}

}  // namespace

Layout::Layout(const process::Process& process, const ParallelOptions& options)
    : options_(options), sizes_(sizes_of(options, process.world_size())), data_(process.group()) {
  if (sizes_.pp > 1 && (sizes_.cp > 1 || sizes_.sp > 1)) {
    throw UsageError(Origin{"parallel", process.rank(), process.world_size()}, plan::layout_text(sizes_),
                     ": pipelines do not go with cp and sp. Set these to 1, and divide the ranks among pp, tp and dp.");
  }
  if (sizes_.pp == 1 && sizes_.tp == 1 && sizes_.cp == 1 && sizes_.sp == 1) return;
  std::vector<comm::MeshAxis> axes;
  for (const auto axis : plan::kAxes) axes.push_back({std::string(plan::axis_name(axis)), sizes_[axis]});
  const comm::DeviceMesh mesh(process.group(), axes);
  data_ = mesh.flatten({"dp_replicate", "dp_shard"});
  model_ = mesh.flatten({"pp", "cp", "sp", "tp"});
  tensor_ = mesh.group("tp");
  pipeline_ = mesh.group("pp");
  context_ = mesh.group(sizes_.sp > 1 ? "sp" : "cp");
  for (const auto* group : {&data_, &model_, &tensor_, &pipeline_, &context_}) group->connect_backends();
  share_random_state(model_, process.device());
}

process::Process Layout::data_process(const process::Process& process) const {
  if (!divides_model()) return process;
  process::RankInfo identity = process.identity();
  identity.rank = data_.rank();
  identity.world_size = data_.world_size();
  return process::Process(std::move(identity), data_, process.device());
}

}  // namespace hasten::parallel
