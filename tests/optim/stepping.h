// What the tests of optimizers' steps share: parameters, their gradients, and a look at the operators called.
#pragma once

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace hasten::optim {

using Tensors = std::vector<at::Tensor>;

inline at::Tensor random(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed));
}

/// Shapes with ends that no vector register fills, in every order in memory that a parameter may have.
inline Tensors leaves() {
  Tensors params = {random({33, 17}, 1), random({5}, 2), random({17, 9}, 3).t(),
                    random({4, 3, 5, 5}, 4).contiguous(at::MemoryFormat::ChannelsLast),
                    random({6, 7}, 5).to(at::kDouble)};
  for (auto& param : params) param = param.detach().requires_grad_();
  return params;
}

inline void set_gradients(const Tensors& params, uint64_t step) {
  for (size_t k = 0; k < params.size(); ++k) {
    params[k].mutable_grad() = random(params[k].sizes(), 100 * step + k).to(params[k].options());
  }
}

inline void expect_near(const Tensors& given, const Tensors& wanted) {
  ASSERT_EQ(given.size(), wanted.size());
  for (size_t i = 0; i < given.size(); ++i) {
    EXPECT_TRUE(torch::allclose(given[i], wanted[i], 1e-6, 1e-6)) << i << '\n' << given[i] - wanted[i];
  }
}

/// How often `fn` calls each operator, by name.
inline std::map<std::string, int> operators_of(const std::function<void()>& fn) {
  static thread_local std::map<std::string, int> counts;
  counts.clear();
  const auto note = [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
    ++counts[function.name()];
    return nullptr;
  };
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(note).scopes({at::RecordScope::FUNCTION}));
  fn();
  at::removeCallback(handle);
  return counts;
}

}  // namespace hasten::optim
