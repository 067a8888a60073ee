// Operators that fail below float32 on this CPU are computed in float32.
#include "hasten/precision/known_limitations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>

#include "hasten/precision/autocast.h"

namespace hasten::precision {
namespace {

using ::testing::Contains;
using ::testing::Not;

at::Tensor trained(at::ScalarType dtype, const std::function<at::Tensor()>& forward) {
  at::Tensor y;
  {
    const Autocast scope(c10::DeviceType::CPU, {.dtype = dtype});
    y = forward();
  }
  y.to(at::kFloat).sum().backward();
  return y;
}

TEST(KnownBad, WhatFailsBelowFloat32OnThisCpuIsComputedInFloat32) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    compute_unsupported_in_float32(dtype);
    torch::manual_seed(1);
    torch::nn::LSTM lstm(torch::nn::LSTMOptions(8, 8).num_layers(2).bidirectional(true));
    torch::nn::Linear linear(8, 8);
    const auto x = torch::randn({3, 5, 8}).requires_grad_(), flat = torch::randn({8, 8});

    const auto recurrent = trained(dtype, [&] { return std::get<0>(lstm(linear(x))); });
    const auto rectified = trained(dtype, [&] { return torch::nn::RReLU()(linear(flat)); });
    const auto determinant = trained(dtype, [&] { return torch::det(linear(flat)); });

    for (const auto& y : {recurrent, rectified, determinant}) EXPECT_TRUE(torch::isfinite(y).all().item<bool>());
    EXPECT_TRUE(lstm->parameters()[0].grad().defined());
    const auto exact = std::get<0>(lstm(linear(x)));
    EXPECT_TRUE(torch::allclose(recurrent.to(at::kFloat), exact, 2e-2, 2e-2));
  }
}

TEST(KnownBad, OnlyWhatFailsIsNamed) {
  EXPECT_THAT(compute_unsupported_in_float32(at::kHalf), Contains("RReLU"));
  EXPECT_THAT(compute_unsupported_in_float32(at::kBFloat16), Not(Contains("RReLU")));
  const auto classes = compute_unsupported_in_float32(at::kHalf);
  const bool has_lstm = std::find(classes.begin(), classes.end(), "LSTM") != classes.end();
  EXPECT_TRUE(!has_lstm || recurrent_layers_need_float32());
}

}  // namespace
}  // namespace hasten::precision
