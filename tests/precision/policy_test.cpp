// The pure part of the room: which precision is in use, what the device's facts say of it, levels, scales.
#include "hasten/precision/policy.h"
#include "hasten/precision/known_limitations.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hasten/core/error.h"
#include "hasten/precision/amp_levels.h"
#include "hasten/precision/device_facts.h"
#include "hasten/precision/fp8_scaling.h"
#include "hasten/precision/loss_scale_rule.h"
#include "precision/float32_precision.h"
#include "support/folder.h"

namespace hasten::precision {
namespace {

using hasten::testing::words_of;

ResolvedPrecision resolved(std::optional<Precision> option, std::optional<std::string> variable = {},
                           const DeviceFacts& facts = {}) {
  return resolve(option, variable, facts);
}

TEST(Policy, TheOptionWinsOverTheVariableWhichWinsOverNo) {
  EXPECT_EQ(resolved({}).precision, Precision::kNo);
  EXPECT_EQ(resolved({}).source, "default");
  EXPECT_EQ(resolved({}, "BF16").precision, Precision::kBf16);
  EXPECT_EQ(resolved({}, "Fp16").source, "ACCELERATE_MIXED_PRECISION");
  EXPECT_EQ(resolved(Precision::kNo, "bf16").precision, Precision::kNo);
  EXPECT_EQ(resolved(Precision::kFp16, "bf16").source, "AcceleratorOptions::mixed_precision");
}

TEST(Policy, AnUnknownWordIsRefusedWithTheOneThatWasMeant) {
  const auto words = words_of<UsageError>([] { resolved(Precision::kNo, "half"); });
  EXPECT_NE(words.find("did you mean 'fp16'?"), std::string::npos) << words;
  EXPECT_NE(words_of<UsageError>([] { parse_precision("bfloat16", "x"); }).find("'bf16'"), std::string::npos);
  EXPECT_NE(words_of<UsageError>([] { parse_precision("bf61", "x"); }).find("'bf16'"), std::string::npos);
  EXPECT_THROW(parse_precision("", "x"), UsageError);
}

TEST(Policy, WhatAGpuCannotDoIsRefusedByName) {
  const DeviceFacts old{.type = c10::DeviceType::CUDA, .capability = 75},
      ampere{.type = c10::DeviceType::CUDA, .capability = 80};
  const auto words = words_of<UsageError>([&] { resolved(Precision::kBf16, {}, old); });
  EXPECT_NE(words.find("compute capability 7.5; bf16 needs 8.0. Use fp16."), std::string::npos) << words;
  EXPECT_EQ(resolved(Precision::kFp16, {}, old).precision, Precision::kFp16);
  EXPECT_NE(words_of<UsageError>([&] { resolved(Precision::kFp8, {}, ampere); }).find("Use bf16."), std::string::npos);
  EXPECT_EQ(resolved(Precision::kFp8, {}, {.type = c10::DeviceType::CUDA, .capability = 89}).precision,
            Precision::kFp8);
  EXPECT_EQ(resolved(Precision::kFp8, {}).precision, Precision::kFp8);  // emulated on a CPU
  EXPECT_THROW(resolved(Precision::kBf16, {}, {.type = c10::DeviceType::XPU}), UsageError);
  EXPECT_EQ(resolved(Precision::kNo, {}, {.type = c10::DeviceType::XPU}).precision, Precision::kNo);
}

TEST(Float32Precision, IsThatOfTheGivenOperatorsOnly) {
  const auto before = float32_precision();
  set_float32_precision({.matmul = Float32Precision::kBf16});

  EXPECT_EQ(float32_precision().matmul, Float32Precision::kBf16);
  EXPECT_EQ(float32_precision().conv, before.conv);
  EXPECT_NE(float32_precision(true).matmul, Float32Precision::kBf16);
  set_float32_precision({.matmul = Float32Precision::kIeee, .rnn = Float32Precision::kTf32});
  EXPECT_EQ(float32_precision().matmul, Float32Precision::kIeee);
  EXPECT_EQ(float32_precision(true).rnn, Float32Precision::kTf32);
}

TEST(DeviceFacts, FlagsOfTheProcessorAreRead) {
  const auto facts = parse_cpuinfo(
      "processor\t: 0\nflags\t\t: fpu avx512_bf16 avx512_fp16 amx_tile amx_bf16\n\nprocessor: 1\nflags: amx_fp16\n");

  EXPECT_TRUE(facts.amx_bf16 && facts.avx512_bf16 && facts.avx512_fp16);
  EXPECT_FALSE(facts.amx_fp16);
  EXPECT_FALSE(parse_cpuinfo("").avx512_bf16);
}

TEST(DeviceFacts, ASlowerPrecisionIsNoted) {
  const DeviceFacts plain{.avx512_bf16 = true, .avx512_fp16 = true}, amx{.amx_bf16 = true};
  EXPECT_NE(speed_note(plain, Precision::kBf16, true).value_or("").find("1.7 times"), std::string::npos);
  EXPECT_FALSE(speed_note(amx, Precision::kBf16, true));
  EXPECT_NE(speed_note(plain, Precision::kFp16, true).value_or("").find("reference kernel"), std::string::npos);
  EXPECT_FALSE(speed_note(plain, Precision::kFp16, false));
  EXPECT_FALSE(speed_note(plain, Precision::kNo, true));
  EXPECT_NE(speed_note(amx, Precision::kFp8, false).value_or("").find("emulated"), std::string::npos);
  EXPECT_FALSE(speed_note({.type = c10::DeviceType::CUDA}, Precision::kBf16, true));
  EXPECT_EQ(describe({.type = c10::DeviceType::CUDA, .capability = 90}), "CUDA device of capability 9.0");
}

TEST(DeviceFacts, KnownBadConvolutionsAreNamedWithTheirIssue) {
  const DeviceFacts cpu{.avx512_bf16 = true};
  const auto volumes = known_limitations(cpu, Precision::kBf16, {.strided_volumes = true});
  ASSERT_EQ(volumes.size(), 1u);
  EXPECT_EQ(volumes[0].find("pytorch#169688 reports"), 0u);
  EXPECT_EQ(known_limitations(cpu, Precision::kBf16, {.dilated_or_grouped = true}).at(0).find("pytorch#183815 reports"),
            0u);
  EXPECT_EQ(
      known_limitations({.amx_bf16 = true}, Precision::kBf16, {.dilated_or_grouped = true, .strided_volumes = true})
          .size(),
      2u);
  EXPECT_TRUE(known_limitations(cpu, Precision::kBf16, {}).empty());
  EXPECT_TRUE(known_limitations(cpu, Precision::kFp16, {.strided_volumes = true}).empty());
  EXPECT_TRUE(known_limitations({}, Precision::kBf16, {.strided_volumes = true}).empty());
  EXPECT_TRUE(
      known_limitations({.type = c10::DeviceType::CUDA, .amx_bf16 = true}, Precision::kBf16, {.strided_volumes = true})
          .empty());
}

TEST(AmpLevels, TheTableAndBfloat16Levels) {
  EXPECT_EQ(resolve(AmpLevel::kO2).cast_model_type, c10::ScalarType::Half);
  EXPECT_TRUE(resolve(AmpLevel::kO2).dynamic_loss_scale);
  const auto bf16 = resolve(AmpLevel::kO2, {}, c10::ScalarType::BFloat16);
  EXPECT_EQ(bf16.cast_model_type, c10::ScalarType::BFloat16);
  EXPECT_FALSE(bf16.dynamic_loss_scale);
  EXPECT_EQ(bf16.loss_scale, 1.0);
  EXPECT_TRUE(resolve(AmpLevel::kO0, {.loss_scale = "dynamic"}).dynamic_loss_scale);
  EXPECT_THROW(resolve(AmpLevel::kO1, {.master_weights = false}), UsageError);
  EXPECT_THROW(resolve(AmpLevel::kO2, {}, c10::ScalarType::Float), UsageError);
  EXPECT_NE(words_of<UsageError>([] { parse_amp_level("01"); }).find("did you mean 'O1'?"), std::string::npos);
}

TEST(LossScaleRule, DeepSpeedsHysteresisHoldsTheFirstOverflowsBack) {
  const auto rule = LossScaleRule::of(LossScaleKind::kDeepSpeed);
  auto state = initial_state(rule);

  state = next(state, true, rule);
  EXPECT_EQ(state.scale, 65536.0);
  state = next(state, true, rule);
  EXPECT_EQ(state.scale, 32768.0);
  state = next(state, true, rule);
  EXPECT_EQ(state.scale, 16384.0);
}

TEST(LossScaleRule, AScaleNeverReachesZeroNorInfinity) {
  LossScaleRule rule{.init_scale = 1e-38, .backoff_factor = 1e-30, .growth_interval = 1};
  EXPECT_GT(next(initial_state(rule), true, rule).scale, 0.0);
  rule.init_scale = 3e38;
  EXPECT_TRUE(std::isfinite(next(initial_state(rule), false, rule).scale));
  rule.max_scale = 3.1e38;
  EXPECT_LE(next(initial_state(rule), false, rule).scale, 3.1e38);
}

TEST(LossScaleRule, AllWrongValuesStandInOneMessage) {
  const auto words = words_of<UsageError>(
      [] { initial_state({.init_scale = -1, .growth_factor = 1, .backoff_factor = 2, .growth_interval = 0}); });
  for (const char* name : {"init_scale = -1", "growth_factor = 1", "backoff_factor = 2", "growth_interval = 0"}) {
    EXPECT_NE(words.find(name), std::string::npos) << words;
  }
}

TEST(LossScaleRule, AFirstScaleThatFloat32CannotHoldIsRefused) {
  EXPECT_THROW(initial_state({.init_scale = 1e-50}), UsageError);
  EXPECT_THROW(initial_state({.init_scale = 1e39}), UsageError);
  EXPECT_GT(initial_state({.init_scale = 1e-45}).scale, 0.0);
}

TEST(Fp8Scaling, ScalesFillTheFormatsRange) {
  EXPECT_EQ(dynamic_scale(2.0, Fp8Format::kE4M3), 224.0F);
  EXPECT_EQ(dynamic_scale(3.0, Fp8Format::kE4M3, true), 128.0F);
  EXPECT_TRUE(std::isfinite(dynamic_scale(0.0, Fp8Format::kE5M2)));
  const auto kept = delayed_scale({.scale = 5.0F}, std::numeric_limits<float>::infinity(), {.amax_history_len = 1});
  EXPECT_EQ(kept.scale, 5.0F);
}

TEST(Fp8Scaling, ADelayedScaleIsThatOfTheLargestOfTheLastWindows) {
  DelayedScale state;
  const auto scale_after = [&](float amax) {
    return (state = delayed_scale(state, amax, {.amax_history_len = 2})).scale;
  };
  EXPECT_EQ(scale_after(4.0F), 112.0F);
  EXPECT_EQ(scale_after(1.0F), 112.0F);  // the window before counts
  EXPECT_EQ(scale_after(1.0F), 448.0F);  // … and this time it held 1
}

}  // namespace
}  // namespace hasten::precision
