// See tied.h.
#include "parallel/pipeline/tied.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "hasten/comm/types/purpose.h"
#include "hasten/interception/interceptor.h"

namespace hasten::parallel::pipeline {

TiedGradients::TiedGradients(StageAxis& axis) : axis_(axis) {
  int place = 0;
  for (auto& [parameter, stages] : axis.tied()) {
    const int tag = kTiedTag + place++;
    std::vector<int> ranks;
    for (const int stage : stages) {
      if (std::find(ranks.begin(), ranks.end(), axis.rank_of(stage)) == ranks.end())
        ranks.push_back(axis.rank_of(stage));
    }
    const bool is_here = std::find(ranks.begin(), ranks.end(), axis.rank()) != ranks.end();
    if (ranks.size() < 2 || !is_here || !parameter.requires_grad()) continue;
    entries_.push_back({parameter, parameter.grad(), ranks, tag});
    parameter.mutable_grad() = at::Tensor();
  }
}

void TiedGradients::sum() {
  const comm::Purpose purpose("pipeline: gradient of a tied parameter");
  const interception::PassScope pass;
  const at::NoGradGuard no_grad;
  auto& messages = axis_.messages();
  for (const Entry& entry : entries_) {
    const auto& [parameter, earlier, ranks, tag] = entry;
    const int first = ranks.front();
    at::Tensor own = parameter.grad();
    if (!own.defined()) own = at::zeros_like(parameter).detach();
    if (own.is_sparse()) own = own.to_dense();
    const auto receive = [&messages, &entry](int from) {
      return messages.receive(entry.parameter.sizes().vec(), entry.parameter.options().requires_grad(false), from,
                              entry.tag);
    };
    at::Tensor sum = own;
    if (axis_.rank() == first) {
      for (size_t other = 1; other < ranks.size(); ++other) sum = sum + receive(ranks[other]);
      for (size_t other = 1; other < ranks.size(); ++other) messages.send(sum, ranks[other], tag);
    } else {
      messages.send(own, first, tag);
      sum = receive(first);
    }
    parameter.mutable_grad() = (earlier.defined() ? earlier + sum : sum).detach();
  }
  messages.finish();
}

}  // namespace hasten::parallel::pipeline
