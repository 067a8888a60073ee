// A double of NCCL on the pretend device: passes bytes through the CPU's backend, and finishes as late as NCCL may.
//
// Results reach their tensors when a stream that waits for the operation gets there, and not before. An input that is
// written to while its operation is under way fails the test. As with NCCL, a message blocks the stream until the other
// side has come to it, messages have no tags, and two ranks on one GPU are refused.
#pragma once

namespace hasten::testing {

/// While it lives, groups of this process use the double for CUDA tensors. Groups that have one keep it.
class UsesNcclDouble {
 public:
  UsesNcclDouble();
  ~UsesNcclDouble();
  UsesNcclDouble(const UsesNcclDouble&) = delete;
  UsesNcclDouble& operator=(const UsesNcclDouble&) = delete;
};

}  // namespace hasten::testing
