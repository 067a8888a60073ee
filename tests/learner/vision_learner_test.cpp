#include "hasten/learner/vision_learner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "files/hub_server.h"
#include "hasten/checkpoint/weights.h"
#include "hasten/core/error.h"
#include "hasten/core/hash.h"
#include "hasten/files/disk/disk.h"
#include "hasten/files/python/python_file.h"
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

// A language model of fastai's names for these words: row r of the embedding holds r, the decoder's bias r / 10.
checkpoint::StateDict fastai_language_model(int64_t num_words) {
  checkpoint::StateDict state;
  const auto rows = torch::arange(static_cast<double>(num_words), torch::kFloat).unsqueeze(1);
  state.set("0.encoder.weight", rows.repeat({1, 6}));
  state.set("0.encoder_dp.emb.weight", torch::full({num_words, 6}, 99.0));
  for (const int64_t layer : {0, 1}) {
    const int64_t in = layer == 0 ? 6 : 8, out = layer == 0 ? 8 : 6;
    const std::string front = text("0.rnns.", layer, '.');
    state.set(front + "weight_hh_l0_raw", torch::randn({4 * out, out}));
    state.set(front + "module.weight_hh_l0", torch::full({4 * out, out}, 99.0));
    state.set(front + "module.weight_ih_l0", torch::randn({4 * out, in}));
    state.set(front + "module.bias_ih_l0", torch::randn({4 * out}));
    state.set(front + "module.bias_hh_l0", torch::randn({4 * out}));
  }
  state.set("1.decoder.weight", rows.repeat({1, 6}));
  state.set("1.decoder.bias", rows.squeeze(1) / 10);
  return state;
}

files::PythonValue texts_of(const std::vector<std::string>& words) {
  auto list = files::PythonValue::list();
  for (const std::string& word : words) list.push_back(word);
  return list;
}

TEST_F(ReadyLearners, FastaisLanguageModelFillsRowsByTheirWords) {
  torch::manual_seed(4);
  const auto from = fastai_language_model(5);
  std::filesystem::create_directories(folder_ / "wt103-fwd");
  checkpoint::save(from, path("wt103-fwd/lstm_fwd.pth"));
  files::save_python_file(files::real_disk(), path("wt103-fwd/itos_wt103.pkl"),
                          texts_of({"xxunk", "xxpad", "the", "film", "dull"}));
  auto options = tiny();
  options.words = {"xxunk", "xxpad", "xxbos", "dull", "film", "a", "b", "c", "d"};
  options.encoder = path("wt103-fwd");

  const auto learn = language_model_learner(texts(), options);

  const auto names = learn.model().module()->named_parameters();
  EXPECT_TRUE(names["encoder.weight"].select(1, 5).equal(torch::tensor({0, 1, 2, 4, 3, 2, 2, 2, 2}).to(torch::kFloat)));
  EXPECT_TRUE(names["decoder_bias"].allclose(torch::tensor({0., .1, .2, .4, .3, .2, .2, .2, .2}).to(torch::kFloat)));
  EXPECT_TRUE(names["encoder.rnn1_weight_hh_l0"].equal(from.at("0.rnns.1.weight_hh_l0_raw")));
  EXPECT_TRUE(names["encoder.rnn0_bias_hh_l0"].equal(from.at("0.rnns.0.module.bias_hh_l0")));
  options.encoder = path("wt103-fwd/lstm_fwd.pth");
  options.encoder_words = path("wt103-fwd/itos_wt103.pkl");
  EXPECT_TRUE(text_classifier_learner(texts(), options)
                  .model()
                  .module()
                  ->named_parameters()["encoder.weight"]
                  .equal(names["encoder.weight"]));
}

TEST_F(ReadyLearners, FastaisWordsThatDoNotFitAreRefused) {
  checkpoint::save(fastai_language_model(5), path("lm.pth"));
  files::save_python_file(files::real_disk(), path("itos.pkl"), texts_of({"xxunk", "xxpad"}));
  auto options = tiny();
  options.encoder = path("lm.pth");

  const auto words_of = [&] {
    return hasten::testing::words_of<hasten::Error>([&] { language_model_learner(texts(), options); });
  };

  EXPECT_THAT(words_of(), HasSubstr("does not fit the module"));
  options.encoder_words = path("itos.pkl");
  EXPECT_THAT(words_of(), HasSubstr("Set TextLearnerOptions::words to Vocab::words()."));
  options.words = {"xxunk", "xxpad", "xxbos", "dull", "film", "a", "b", "c", "d"};
  EXPECT_THAT(words_of(), HasSubstr("has 2 words, and the weights have 5 rows."));
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
