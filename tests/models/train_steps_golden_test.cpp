// Batches and losses of Megatron-LM's train steps, as Accelerate 1.15 makes them.
#include "hasten/models/train_steps.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "hasten/core/error.h"
#include "support/golden.h"

namespace hasten::models {
namespace {

using nlohmann::json;
using testing::GoldenCase;
using testing::GoldenTopic;

void flatten(const json& value, std::vector<double>& out) {
  if (value.is_array()) {
    for (const auto& item : value) flatten(item, out);
  } else if (value.is_string()) {
    out.push_back(value == "nan"   ? std::numeric_limits<double>::quiet_NaN()
                  : value == "inf" ? std::numeric_limits<double>::infinity()
                                   : -std::numeric_limits<double>::infinity());
  } else {
    out.push_back(value.get<double>());
  }
}

// Null: an undefined tensor.
at::Tensor tensor_of(const json& value, at::ScalarType dtype) {
  if (value.is_null()) return {};
  std::vector<double> all;
  flatten(value, all);
  std::vector<int64_t> sizes;
  for (const json* at = &value; at->is_array(); at = &at->at(0)) {
    sizes.push_back(static_cast<int64_t>(at->size()));
    if (at->empty()) break;
  }
  return torch::tensor(all, at::kDouble).to(dtype).view(sizes);
}

json numbers(const at::Tensor& tensor) {
  if (tensor.dim() == 0) {
    if (tensor.is_floating_point()) return tensor.item<float>();
    return tensor.item<int64_t>();
  }
  json out = json::array();
  for (const at::Tensor& row : tensor.unbind(0)) out.push_back(numbers(row));
  return out;
}

json values_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  return numbers(tensor.scalar_type() == at::kBool ? tensor.to(at::kLong) : tensor);
}

TextBatch text_batch(const json& given) {
  TextBatch batch;
  for (const auto& [name, value] : given.items()) batch[name] = tensor_of(value, at::kLong);
  return batch;
}

json gpt_batch_case(const GoldenCase& golden) {
  const json& options = golden.input.at("options");
  TextBatch batch{{"input_ids", tensor_of(golden.input.at("input_ids"), at::kLong)}};
  if (golden.input.contains("labels")) batch["labels"] = tensor_of(golden.input.at("labels"), at::kLong);
  const auto found = gpt_batch(batch, {.eos_token_id = options.at("eos_token_id"),
                                       .reset_position_ids = options.value("reset_position_ids", false),
                                       .reset_attention_mask = options.value("reset_attention_mask", false),
                                       .eod_mask_loss = options.value("eod_mask_loss", false)});
  return {{"tokens", values_of(found.tokens)},
          {"labels", values_of(found.labels)},
          {"loss_mask", values_of(found.loss_mask)},
          {"attention_masked", values_of(found.attention_masked)},
          {"position_ids", values_of(found.position_ids)}};
}

// The loss at an end of document counts, unless eod_mask_loss is set.
json all_losses_count(const GoldenCase& golden) {
  const json& options = golden.input.at("options");
  json mask = json::array();
  for (const auto& row : golden.input.at("input_ids")) {
    json one = json::array();
    for (const auto& token : row) {
      const bool is_end = token == options.at("eos_token_id");
      one.push_back(is_end && options.value("eod_mask_loss", false) ? 0.0 : 1.0);
    }
    mask.push_back(one);
  }
  return {{"loss_mask", mask}};
}

TEST(TrainSteps, MakeBatchesOfGptAsThePeerDoes) {
  GoldenTopic topic("model_parallel", [](const GoldenCase& golden) { return golden.family == "gpt_batch"; });
  topic.on_quirk("end-of-document-loses-its-loss", all_losses_count);

  topic.for_each([&](const GoldenCase& golden) { topic.judge(golden, [&] { return gpt_batch_case(golden); }); });

  topic.finish();
}

json bert_batch_case(const GoldenCase& golden) {
  const auto found = bert_batch(text_batch(golden.input.at("batch")));
  return {{"tokens", values_of(found.tokens)},
          {"types", values_of(found.types)},
          {"sentence_order", values_of(found.sentence_order)},
          {"loss_mask", values_of(found.loss_mask)},
          {"lm_labels", values_of(found.lm_labels)},
          {"padding_mask", values_of(found.padding_mask)}};
}

json t5_batch_case(const GoldenCase& golden) {
  const auto found = t5_batch(text_batch(golden.input.at("batch")));
  return {{"tokens_enc", values_of(found.tokens_enc)},        {"tokens_dec", values_of(found.tokens_dec)},
          {"loss_mask", values_of(found.loss_mask)},          {"labels", values_of(found.labels)},
          {"enc_masked", values_of(found.enc_masked)},        {"dec_masked", values_of(found.dec_masked)},
          {"enc_dec_masked", values_of(found.enc_dec_masked)}};
}

TEST(TrainSteps, MakeBatchesOfBertAndT5AsThePeerDoes) {
  GoldenTopic topic("model_parallel", [](const GoldenCase& golden) {
    return golden.family == "bert_batch" || golden.family == "t5_batch";
  });

  topic.for_each([&](const GoldenCase& golden) {
    topic.judge(golden, [&] { return golden.family == "t5_batch" ? t5_batch_case(golden) : bert_batch_case(golden); });
  });

  topic.finish();
}

at::Tensor losses_of(const GoldenCase& golden) {
  return tensor_of(golden.input.at("losses"), at::kFloat);
}
at::Tensor mask_of(const GoldenCase& golden) {
  return tensor_of(golden.input.at("loss_mask"), at::kFloat);
}

json gpt_loss_case(const GoldenCase& golden) {
  try {
    const json loss = values_of(gpt_loss(losses_of(golden), mask_of(golden)));
    return {{"loss", loss}, {"named", {{"lm loss", loss}}}};
  } catch (const UsageError&) {
    return testing::golden_error("AssertionError");
  }
}

json bert_loss_case(const GoldenCase& golden) {
  const json& input = golden.input;
  if (input.contains("logits")) {
    const at::Tensor labels = tensor_of(input.at("labels"), input.value("integers", false) ? at::kLong : at::kFloat);
    return {{"loss", values_of(classification_loss(tensor_of(input.at("logits"), at::kFloat), labels,
                                                   input.at("num_labels").get<int64_t>()))}};
  }
  const auto found = bert_loss(losses_of(golden), mask_of(golden), tensor_of(input.at("sop_logits"), at::kFloat),
                               tensor_of(input.at("sentence_order"), at::kLong));
  json named = {{"lm loss", values_of(found.words)}};
  if (found.order.defined()) named["sop loss"] = values_of(found.order);
  return {{"loss", values_of(found.loss)}, {"named", named}};
}

// Without a valid token nothing is learned.
json empty_is_zero(const GoldenCase& golden) {
  json out = {{"loss", 0.0}};
  if (golden.family != "t5_loss") out["named"] = {{"lm loss", 0.0}};
  return out;
}

TEST(TrainSteps, LoseAsThePeerDoes) {
  GoldenTopic topic("model_parallel", [](const GoldenCase& golden) {
    return golden.family == "gpt_loss" || golden.family == "bert_loss" || golden.family == "t5_loss";
  });
  topic.tolerate({.absolute = 1e-6});
  topic.on_quirk("empty-mask-is-nan", empty_is_zero);

  topic.for_each([&](const GoldenCase& golden) {
    topic.judge(golden, [&]() -> json {
      if (golden.family == "gpt_loss") return gpt_loss_case(golden);
      if (golden.family == "bert_loss") return bert_loss_case(golden);
      return {{"loss", values_of(masked_mean(losses_of(golden), mask_of(golden)))}};
    });
  });

  topic.finish();
}

// Families of the topic are judged by the test programs of settings, plan, files, parallel and models.
TEST(TrainSteps, EveryFamilyOfTheTopicHasAProgramThatJudgesIt) {
  const std::set<std::string> known = {"mesh",       "groups",    "plugin",   "network", "training",  "schedule",
                                       "order",      "tp_plan",   "idx",      "tp",      "gpt_batch", "gpt_loss",
                                       "bert_batch", "bert_loss", "t5_batch", "t5_loss"};
  const GoldenTopic topic("model_parallel");

  for (const auto& golden : topic.cases()) EXPECT_TRUE(known.contains(golden.family)) << golden.name;
}

TEST(TrainSteps, ALabelOfTheBatchCounts) {
  const TextBatch batch{{"input_ids", torch::tensor({3, 4, 5}, at::kLong).view({1, 3})},
                        {"labels", torch::tensor({3, -100, 7}, at::kLong).view({1, 3})}};

  const auto found = gpt_batch(batch, {.eos_token_id = 9});

  EXPECT_EQ(values_of(found.labels), json::parse("[[-100, 7, -100]]"));
  EXPECT_EQ(values_of(found.loss_mask), json::parse("[[0.0, 1.0, 0.0]]"));
}

TEST(TrainSteps, AKeyThatLacksIsNamed) {
  try {
    bert_batch({{"input_ids", at::zeros({1, 2})}, {"attention_maks", at::ones({1, 2})}});
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("without 'attention_mask', did you mean 'attention_maks'"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace hasten::models
