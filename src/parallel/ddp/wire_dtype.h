// Which gradients travel in DdpOptions::communication_dtype, and buckets that are of one kind.
#pragma once

#include <cstddef>
#include <vector>

#include "hasten/parallel/ddp/bucket_plan.h"
#include "hasten/parallel/ddp/ddp_options.h"
#include "parallel/parameters/parameter_set.h"

namespace hasten::parallel {

/// Returns for each parameter whether its gradient does.
std::vector<bool> in_communication_dtype(const ParameterSet& parameters, const DdpOptions& options);

/// Cuts buckets in two whose members are of both kinds.
BucketPlan split_by_wire(const BucketPlan& plan, const std::vector<bool>& travels_low);

}  // namespace hasten::parallel
