// Which gradients travel together: a pure plan, made from names, sizes and dtypes alone.
//
// Gradients become ready roughly in the reverse order of the parameters. So buckets are filled from the last parameter
// to the first and exchanged while backward goes on. Source: Li et al., "PyTorch Distributed", VLDB 2020, section
// 3.2.3. The first bucket is small so that the first exchange starts early.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hasten::parallel {

/// The plan's facts about one parameter.
struct ParameterInfo {
  std::string name;
  int64_t numel = 0;
  int64_t bytes = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::Device device = c10::Device(c10::kCPU);
};

struct BucketLimits {
  /// A bucket is closed once it holds at least this many bytes; torch DDP's values.
  int64_t first_bytes = 1 << 20;
  int64_t bytes = 25 << 20;
};

/// Indices into the parameter list, in the order of their places in the bucket. All have one dtype and device.
using BucketPlan = std::vector<std::vector<size_t>>;

/// Puts every parameter in exactly one bucket. Buckets come in the order in which they are expected to be ready. The
/// same input gives the same plan on every rank. Throws: UsageError for limits below 1.
BucketPlan plan_buckets(const std::vector<ParameterInfo>& parameters, const BucketLimits& limits = {});

}  // namespace hasten::parallel
