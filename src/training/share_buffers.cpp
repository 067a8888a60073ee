// ShareBuffers; see verify_recorder.h.
#include <ATen/core/grad_mode.h>

#include "hasten/training/verify_recorder.h"

namespace hasten::training {
namespace {

std::vector<at::Tensor> copies_of(const std::vector<VerifyTensor>& buffers) {
  std::vector<at::Tensor> copies;
  for (const auto& buffer : buffers) copies.push_back(buffer.tensor.detach().clone());
  return copies;
}

void put_back(const std::vector<at::Tensor>& from, const std::vector<VerifyTensor>& buffers) {
  // Another model was prepared meanwhile: its buffers are those of all shares.
  if (from.size() != buffers.size()) return;
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < from.size(); ++i) buffers[i].tensor.detach().copy_(from[i]);
}

}  // namespace

void ShareBuffers::enter(int share, const Read& read) {
  if (current_ < 0) {
    base_ = copies_of(read());
  } else {
    leave(read);
    const auto known = static_cast<size_t>(share);
    put_back(known < of_share_.size() && !of_share_[known].empty() ? of_share_[known] : base_, read());
  }
  current_ = share;
}

void ShareBuffers::leave(const Read& read) {
  const auto share = static_cast<size_t>(current_);
  if (of_share_.size() <= share) of_share_.resize(share + 1);
  of_share_[share] = copies_of(read());
}

void ShareBuffers::end_window(const Read& read) {
  if (current_ < 0) return;
  leave(read);
  if (!of_share_.front().empty()) put_back(of_share_.front(), read());
  current_ = -1;
  of_share_.clear();
}

}  // namespace hasten::training
