// Filling buckets from the last parameter to the first; see bucket_plan.h.
#include "hasten/parallel/ddp/bucket_plan.h"

#include <map>
#include <tuple>

#include "hasten/core/error.h"

namespace hasten::parallel {

BucketPlan plan_buckets(const std::vector<ParameterInfo>& parameters, const BucketLimits& limits) {
  if (limits.bytes < 1 || limits.first_bytes < 1) {
    throw UsageError(Origin{"ddp"}, "bucket limits of ", limits.first_bytes, " and ", limits.bytes,
                     " bytes; both must be at least 1.");
  }
  struct Open {
    std::vector<size_t> members;
    int64_t bytes = 0;
  };
  using Key = std::tuple<c10::ScalarType, c10::DeviceType, c10::DeviceIndex>;
  std::map<Key, Open> open;
  BucketPlan plan;
  for (size_t i = parameters.size(); i-- > 0;) {
    const ParameterInfo& parameter = parameters[i];
    Open& bucket = open[{parameter.dtype, parameter.device.type(), parameter.device.index()}];
    bucket.members.push_back(i);
    bucket.bytes += parameter.bytes;
    if (bucket.bytes < (plan.empty() ? limits.first_bytes : limits.bytes)) continue;
    plan.push_back(std::move(bucket.members));
    bucket = {};
  }
  for (auto& [key, bucket] : open) {
    if (!bucket.members.empty()) plan.push_back(std::move(bucket.members));
  }
  return plan;
}

}  // namespace hasten::parallel
