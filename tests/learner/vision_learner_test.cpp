#include "hasten/learner/vision_learner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "files/hub_server.h"
#include "hasten/checkpoint/weights.h"
#include "hasten/core/error.h"
#include "hasten/core/hash.h"
#include "hasten/learner/pretrained.h"
#include "hasten/learner/text_learner.h"
#include "support/folder.h"

namespace hasten::learner {
namespace {

using ::testing::HasSubstr;
using ReadyLearners = hasten::testing::InFolder;

Loaders pictures(std::vector<std::string> vocab = {"cat", "dog", "owl"}) {
  torch::manual_seed(1);
  auto loaders = tensor_loaders({torch::rand({6, 3, 32, 32}), torch::tensor({0, 1, 2, 0, 1, 2})},
                                {torch::rand({3, 3, 32, 32}), torch::tensor({0, 1, 2})}, {.batch_size = 3});
  loaders.vocab = std::move(vocab);
  return loaders;
}

Loaders texts() {
  torch::manual_seed(1);
  auto loaders = tensor_loaders({torch::randint(2, 9, {8, 7}), torch::randint(2, {8})},
                                {torch::randint(2, 9, {4, 7}), torch::randint(2, {4})}, {.batch_size = 4});
  loaders.vocab = {"bad", "good"};
  return loaders;
}

TextLearnerOptions tiny() {
  return {.model = {.vocab = 9, .embedding = 6, .hidden = 8, .layers = 2}};
}

TEST_F(ReadyLearners, VisionLearnerHasFastaisHeadAndGroupsAndTrains) {
  const auto learn = vision_learner(pictures(), 18);
  const auto names = learn.model().module()->named_parameters();

  EXPECT_EQ(names["head.6.weight"].sizes(), (std::vector<int64_t>{3, 512}));
  EXPECT_EQ(names["head.2.weight"].sizes(), (std::vector<int64_t>{512, 1024}));
  EXPECT_EQ(models::resnet_groups(*learn.model().module()).size(), 3u);
  EXPECT_TRUE(names["conv1.weight"].requires_grad());
  learn.no_logging([&] { learn.fit(1, 1e-3); });
  EXPECT_THAT([] { vision_learner(pictures({}), 18); }, ::testing::ThrowsMessage<UsageError>(HasSubstr("no vocab")));
  EXPECT_THAT([] { vision_learner(pictures(), 20); }, ::testing::ThrowsMessage<UsageError>(HasSubstr("18, 34, 50")));
}

TEST_F(ReadyLearners, WeightsOfAnotherNumberOfClassesFillTheBodyWhichIsFrozen) {
  torch::manual_seed(7);
  auto other = models::resnet(18, 10, {.vision_head = false});
  checkpoint::save(*other, path("net.safetensors"), {.safe_serialization = true});
  auto lacking = checkpoint::state_dict(*other);
  checkpoint::StateDict part;
  for (const auto& [name, tensor] : lacking) {
    if (!name.starts_with("layer4.1.bn2")) part.set(name, tensor);
  }
  checkpoint::save(part, path("part.safetensors"), {.safe_serialization = true});

  const auto learn = vision_learner(pictures(), 18, {.weights = path("net.safetensors")});

  const auto names = learn.model().module()->named_parameters();
  EXPECT_TRUE(names["layer3.0.conv1.weight"].equal(other->named_parameters()["layer3.0.conv1.weight"]));
  EXPECT_FALSE(names["layer3.0.conv1.weight"].requires_grad());
  EXPECT_TRUE(names["head.6.weight"].requires_grad());
  EXPECT_THAT([&] { vision_learner(pictures(), 18, {.weights = path("part.safetensors")}); },
              ::testing::ThrowsMessage<DataError>(HasSubstr("has no 'layer4.1.bn2")));
}

TEST_F(ReadyLearners, TheEncoderOfALanguageModelBeginsAClassifier) {
  auto options = tiny();
  torch::manual_seed(3);
  const auto language = language_model_learner(texts(), options);
  save_encoder(language, path("encoder.safetensors"));
  options.encoder = path("encoder.safetensors");

  const auto learn = text_classifier_learner(texts(), options);

  const auto from = language.model().module()->named_parameters(), names = learn.model().module()->named_parameters();
  EXPECT_TRUE(names["encoder.rnn1_weight_hh_l0"].equal(from["encoder.rnn1_weight_hh_l0"]));
  EXPECT_FALSE(names["encoder.weight"].requires_grad());
  EXPECT_EQ(names["head.6.weight"].size(0), 2);
  learn.no_logging([&] { learn.fit_one_cycle(2, 1e-2); });
  EXPECT_FALSE(names["head.6.weight"].equal(
      text_classifier_learner(texts(), options).model().module()->named_parameters()["head.6.weight"]));
  EXPECT_THAT([] { text_classifier_learner(texts(), {}); }, ::testing::ThrowsMessage<UsageError>(HasSubstr("0 words")));
}

TEST_F(ReadyLearners, PretrainedWeightsAreAFileAFolderOrAnAddressWithItsHash) {
  files::testing::HubServer server(
      [](const files::testing::HubRequest&) { return files::testing::HubAnswer{.body = "weights"}; });
  const auto environment = Environment::of({{"HF_HUB_CACHE", folder_.string()}});
  const std::string address = server.url() + "/net.pth", hash = core::sha256_hex("weights");

  const auto fetched = pretrained_path(address, hash, environment);

  EXPECT_TRUE(fetched.starts_with(path("files/" + hash.substr(0, 16) + "_net.pth"))) << fetched;
  EXPECT_EQ(pretrained_path(folder_, "", environment), folder_.string());
  EXPECT_THAT([&] { pretrained_path(address, "", environment); },
              ::testing::ThrowsMessage<UsageError>(HasSubstr("Set sha256.")));
  EXPECT_THAT([&] { pretrained_path("./no/such", "", environment); },
              ::testing::ThrowsMessage<UsageError>(HasSubstr("are no file or folder")));
}

}  // namespace
}  // namespace hasten::learner
