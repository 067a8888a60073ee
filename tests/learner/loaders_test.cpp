// Loaders of image files and of texts.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>

#include "hasten/learner/image_loaders.h"
#include "hasten/learner/text_loaders.h"
#include "support/folder.h"

namespace hasten::learner {
namespace {

using ImageLoadersInFolder = hasten::testing::InFolder;

TEST_F(ImageLoadersInFolder, FindsSplitsAndNamesFiles) {
  for (const char* name :
       {"train/cat/a_1.png", "train/dog/b_2.jpg", "val/cat/c_3.jpeg", "val/dog/d_4.PNG", "val/dog/notes.txt"})
    write(name, "");

  const auto files = image_files(folder_);
  const auto valid = folder_split("val")(files);
  const auto half = random_split(0.5, 1)(files);

  ASSERT_EQ(files.size(), 4U);
  EXPECT_EQ(valid, (std::vector<bool>{false, false, true, true}));
  EXPECT_EQ(std::count(half.begin(), half.end(), true), 2);
  EXPECT_EQ(half, random_split(0.5, 1)(files));
  EXPECT_EQ(folder_name(files[0]), "cat");
  EXPECT_EQ(name_before_number("great_pyrenees_12.jpg"), "great_pyrenees");
  EXPECT_THROW(image_files(folder_ / "train" / "none"), DataError);
  EXPECT_THROW(random_split(1.5, 1), UsageError);
}

TEST(TextLoaders, NumbersWordsByFrequency) {
  const auto vocab = Vocab::of({"the cat, the Cat and the dog", "the end"}, 2);

  EXPECT_EQ(tokenize("The cat's"), (std::vector<std::string>{"xxmaj", "the", "cat", "'", "s"}));
  EXPECT_EQ(vocab.words(), (std::vector<std::string>{"xxunk", "xxpad", "xxbos", "the", "cat"}));
  EXPECT_EQ(vocab.numbers("the bird"), (std::vector<int64_t>{Vocab::kStart, 3, Vocab::kUnknown}));
}

TEST(TextLoaders, GivesEachRankContiguousStreams) {
  std::vector<int64_t> stream(41);
  for (size_t i = 0; i < stream.size(); ++i) stream[i] = static_cast<int64_t>(i);
  const LanguageModelOptions options{.batch_size = 2, .seq_len = 4};

  const auto first = language_model_batches({stream}, options, 0, 2),
             second = language_model_batches({stream}, options, 1, 2);

  ASSERT_EQ(first.size(), 3U);
  EXPECT_TRUE(first[0].inputs[0].equal(at::tensor(std::vector<int64_t>{0, 1, 2, 3, 10, 11, 12, 13}).reshape({2, 4})));
  EXPECT_TRUE(second[0].inputs[0][0].equal(at::arange(20, 24)));
  EXPECT_TRUE(first[1].inputs[0][0].equal(at::arange(4, 8)));
  EXPECT_TRUE(first[0].targets[0].equal(first[0].inputs[0] + 1));
  EXPECT_THROW(language_model_batches({{1, 2}}, options), UsageError);
}

TEST(TextLoaders, PadsAtTheFrontAndSortsByLength) {
  const auto batches = text_batches({{2, 5}, {2, 6, 7, 8}, {2, 9, 9}}, {0, 1, 2}, {.batch_size = 2, .max_len = 3});

  ASSERT_EQ(batches.size(), 2U);
  EXPECT_TRUE(batches[0].inputs[0].equal(at::tensor(std::vector<int64_t>{6, 7, 8, 2, 9, 9}).reshape({2, 3})));
  EXPECT_TRUE(batches[0].targets[0].equal(at::tensor(std::vector<int64_t>{1, 2})));
  EXPECT_TRUE(batches[1].inputs[0].equal(at::tensor(std::vector<int64_t>{2, 5}).reshape({1, 2})));
}

TEST(Loaders, RefuseSizesThatNoLoopEndsWith) {
  const std::vector<std::vector<int64_t>> texts{{1, 2, 3, 4}, {5, 6, 7, 8}};
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"batch_size = 0", [&] { language_model_batches(texts, {.batch_size = 0, .seq_len = 2}); }},
      {"seq_len = 0", [&] { language_model_batches(texts, {.batch_size = 1, .seq_len = 0}); }},
      {"batch_size = -1",
       [&] {
         text_batches(texts, {0, 1}, {.batch_size = -1});
       }},
      {"max_len = 0",
       [&] {
         text_batches(texts, {0, 1}, {.max_len = 0});
       }},
      {"batch_size = -3", [&] {
         tensor_loader(at::rand({4, 2}), at::rand({4}), {.batch_size = -3});
       }}};

  for (const auto& [wanted, call] : calls) {
    const auto words = hasten::testing::words_of<UsageError>(call);
    EXPECT_NE(words.find(text(wanted, "; expected at least 1.")), std::string::npos) << wanted << ": " << words;
  }
}

}  // namespace
}  // namespace hasten::learner
