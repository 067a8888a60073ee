// See layout.h.
#include "hasten/parallel/layout/layout.h"

#include <utility>

#include "hasten/comm/mesh/device_mesh.h"
#include "hasten/core/error.h"
#include "hasten/process/default_generators.h"

namespace hasten::parallel {
namespace {

plan::LayoutSizes given_sizes(const ParallelOptions& options) {
  return {.pp = options.pp,
          .dp_replicate = options.dp_replicate,
          .dp_shard = options.dp_shard,
          .cp = options.cp,
          .sp = options.sp,
          .tp = options.tp};
}

plan::LayoutSizes sizes_of(const ParallelOptions& options, int world_size) {
  plan::LayoutSizes sizes = given_sizes(options);
  if (sizes == plan::LayoutSizes{}) sizes.dp_replicate = world_size;
  return plan::fit_to_world(sizes, world_size);
}

comm::DeviceMesh make_mesh(const comm::Group& world, const plan::LayoutSizes& sizes) {
  std::vector<comm::MeshAxis> axes;
  for (const auto axis : plan::kAxes) axes.push_back({std::string(plan::axis_name(axis)), sizes[axis]});
  return comm::DeviceMesh(world, axes);
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
    : options_(options),
      sizes_(sizes_of(options, process.world_size())),
      is_given_(given_sizes(options) != plan::LayoutSizes{}),
      world_(process.group()),
      data_(process.group()) {
  if (sizes_.pp > 1 && (sizes_.cp > 1 || sizes_.sp > 1)) {
    throw UsageError(Origin{"parallel", process.rank(), process.world_size()}, plan::layout_text(sizes_),
                     ": pipelines do not go with cp and sp. Set these to 1, and divide the ranks among pp, tp and dp.");
  }
  if (sizes_.pp == 1 && sizes_.tp == 1 && sizes_.cp == 1 && sizes_.sp == 1) return;
  const comm::DeviceMesh& mesh = mesh_->emplace(make_mesh(world_, sizes_));
  data_ = mesh.flatten({"dp_replicate", "dp_shard"});
  model_ = mesh.flatten({"pp", "cp", "sp", "tp"});
  tensor_ = mesh.group("tp");
  pipeline_ = mesh.group("pp");
  context_ = mesh.group(sizes_.sp > 1 ? "sp" : "cp");
  for (const auto* group : {&data_, &model_, &tensor_, &pipeline_, &context_}) group->connect_backends();
  share_random_state(model_, process.device());
}

void Layout::require_given() const {
  if (is_given_) return;
  throw UsageError(Origin{"parallel", world_.rank(), world_.world_size()},
                   "no layout is set, so that ranks have no places along axes. Set sizes in "
                   "AcceleratorOptions::parallel, for example .parallel = {.tp = -1}.");
}

int Layout::rank_along(plan::Axis axis) const {
  require_given();
  return plan::coordinate_of(sizes_, world_.rank())[axis];
}

int Layout::rank_along_sequence() const {
  return rank_along(sizes_.sp > 1 ? plan::Axis::kSp : plan::Axis::kCp);
}

const comm::DeviceMesh& Layout::mesh() const {
  require_given();
  if (!*mesh_) mesh_->emplace(make_mesh(world_, sizes_));
  return **mesh_;
}

RankPlace Layout::place() const {
  return {divides_model() ? plan::coordinate_text(sizes_, world_.rank()) : std::string(), world_.rank()};
}

process::Process Layout::data_process(const process::Process& process) const {
  if (!divides_model()) return process;
  process::RankInfo identity = process.identity();
  identity.rank = data_.rank();
  identity.world_size = data_.world_size();
  return process::Process(std::move(identity), data_, process.device());
}

}  // namespace hasten::parallel
