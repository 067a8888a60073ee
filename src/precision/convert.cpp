// See convert.h.
#include "hasten/precision/convert.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <regex>

#include "hasten/core/error.h"

namespace hasten::precision {
namespace {

template <class Norm>
bool is_affine(const torch::nn::Module& module) {
  const auto* norm = dynamic_cast<const Norm*>(&module);
  return norm != nullptr && norm->options.affine();
}

bool is_batch_norm(const torch::nn::Module& module) {
  return is_affine<torch::nn::BatchNorm1dImpl>(module) || is_affine<torch::nn::BatchNorm2dImpl>(module) ||
         is_affine<torch::nn::BatchNorm3dImpl>(module);
}

void convert_own(torch::nn::Module& module, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const auto change = [dtype](at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_floating_point() || tensor.scalar_type() == dtype) return;
    auto gradient = tensor.is_leaf() ? tensor.grad() : at::Tensor();
    if (gradient.defined()) tensor.mutable_grad() = at::Tensor();
    tensor.set_data(tensor.to(dtype));
    if (gradient.defined()) tensor.mutable_grad() = gradient.to(dtype);
  };
  for (auto& parameter : module.parameters(/*recurse=*/false)) change(parameter);
  for (auto& buffer : module.buffers(/*recurse=*/false)) change(buffer);
}

}  // namespace

void convert(torch::nn::Module& module, at::ScalarType dtype, const ConvertOptions& options) {
  for (const auto& each : module.modules(/*include_self=*/false)) {
    if (!options.keep_batchnorm || !is_batch_norm(*each)) convert_own(*each, dtype);
  }
  if (!options.keep_batchnorm || !is_batch_norm(module)) convert_own(module, dtype);
}

namespace {

std::vector<std::regex> patterns_of(const std::vector<std::string>& texts) {
  std::vector<std::regex> patterns;
  for (const auto& text : texts) {
    std::string words;
    for (const char letter : text) words += letter == '*' ? std::string(".*") : std::string(1, letter);
    try {
      patterns.emplace_back(words, std::regex::ECMAScript);
    } catch (const std::regex_error& error) {
      throw UsageError(Origin{"precision"}, "'", text, "' is no pattern of buffers' names: ", error.what(),
                       ". Write a name, with * for any characters.");
    }
  }
  return patterns;
}

}  // namespace

int64_t cast_buffers(torch::nn::Module& module, const BufferCasts& casts) {
  const at::NoGradGuard no_grad;
  const auto patterns = patterns_of(casts.keep_float32);
  int64_t count = 0;
  const auto cast_own = [&](const torch::nn::Module& owner, const std::string& prefix) {
    const bool has_statistics = owner.name().find("BatchNorm") != std::string::npos;
    for (const auto& item : owner.named_buffers(/*recurse=*/false)) {
      at::Tensor buffer = item.value();
      if (!buffer.defined() || buffer.is_meta() || !buffer.is_floating_point()) continue;
      const bool stays = std::any_of(patterns.begin(), patterns.end(), [&](const std::regex& pattern) {
        return std::regex_search(prefix + item.key(), pattern);
      });
      auto dtype = has_statistics ? buffer.scalar_type() : casts.dtype.value_or(buffer.scalar_type());
      if (stays) dtype = at::kFloat;
      if (buffer.scalar_type() == dtype) continue;
      buffer.set_data(buffer.to(dtype));
      ++count;
    }
  };
  cast_own(module, "");
  for (const auto& item : module.named_modules(/*name_prefix=*/"", /*include_self=*/false))
    cast_own(*item.value(), item.key() + '.');
  return count;
}

void batch_norms_to_float(torch::nn::Module& module) {
  for (const auto& each : module.modules(/*include_self=*/false)) {
    if (is_batch_norm(*each)) convert_own(*each, at::kFloat);
  }
  if (is_batch_norm(module)) convert_own(module, at::kFloat);
}

void network_to_half(torch::nn::Module& module) {
  convert(module, at::kHalf, {.keep_batchnorm = true});
}

ParameterLists prep_param_lists(const torch::nn::Module& module, bool flat_master) {
  const at::NoGradGuard no_grad;
  ParameterLists lists;
  for (const auto& parameter : module.parameters()) {
    if (parameter.requires_grad()) lists.model.push_back(parameter);
  }
  if (!flat_master) {
    for (const auto& parameter : lists.model) {
      lists.master.push_back(parameter.detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).requires_grad_());
    }
    return lists;
  }
  std::vector<at::Tensor> flat;
  for (const auto& parameter : lists.model) {
    if (parameter.scalar_type() != lists.model.front().scalar_type()) {
      throw UsageError(Origin{"precision"}, "flat_master needs parameters of one dtype; they have ",
                       lists.model.front().scalar_type(), " and ", parameter.scalar_type(),
                       ". Use flat_master = false.");
    }
    flat.push_back(parameter.detach().reshape({-1}));
  }
  if (!flat.empty()) lists.master.push_back(at::cat(flat).to(at::kFloat).requires_grad_());
  return lists;
}

void model_grads_to_master_grads(const ParameterLists& lists) {
  const at::NoGradGuard no_grad;
  const bool flat =
      lists.master.size() == 1 && (lists.model.size() != 1 || lists.master[0].sizes() != lists.model[0].sizes());
  int64_t begin = 0;
  for (size_t i = 0; i < lists.model.size(); ++i) {
    const auto& gradient = lists.model[i].grad();
    const auto& master = lists.master[flat ? 0 : i];
    const int64_t length = lists.model[i].numel();
    if (!gradient.defined() && !flat) {
      master.mutable_grad() = at::Tensor();
      continue;
    }
    if (!master.grad().defined()) master.mutable_grad() = at::zeros_like(master);
    const at::Tensor to = flat ? master.grad().narrow(0, begin, length) : master.grad();
    gradient.defined() ? to.copy_(flat ? gradient.reshape({-1}) : gradient) : to.zero_();
    begin += length;
  }
}

void master_params_to_model_params(const ParameterLists& lists) {
  const at::NoGradGuard no_grad;
  const bool flat =
      lists.master.size() == 1 && (lists.model.size() != 1 || lists.master[0].sizes() != lists.model[0].sizes());
  int64_t begin = 0;
  for (size_t i = 0; i < lists.model.size(); ++i) {
    const auto& parameter = lists.model[i];
    parameter.copy_(flat ? lists.master[0].narrow(0, begin, parameter.numel()).view_as(parameter) : lists.master[i]);
    begin += parameter.numel();
  }
}

}  // namespace hasten::precision
