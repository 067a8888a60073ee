#include "hasten/data/dataset/image_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "data/dataset/archive.h"
#include "hasten/data/dataset/concat.h"
#include "hasten/data/dataset/map.h"
#include "hasten/data/dataset/subset.h"
#include "hasten/data/loader/loader.h"
#include "support/folder.h"
#include "support/pixels.h"

namespace hasten::data {
namespace {

using ::testing::ElementsAre;
using testing::golden_image;
using ::testing::HasSubstr;
using testing::InFolder;
using testing::words_of;
using torch::data::samplers::SequentialSampler;
using torch::data::transforms::Stack;

class Folders : public InFolder {
 protected:
  void add(const std::string& name, const std::string& golden = "photo.png") const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::filesystem::copy_file(golden_image(golden), folder_ / name);
  }
  std::vector<std::string> names(const ImageFolder& folder) const {
    std::vector<std::string> names;
    for (size_t i = 0; i < *folder.size(); ++i) names.push_back(folder.path(i).substr(folder_.string().size() + 1));
    return names;
  }
  std::string refused(const ImageFolderOptions& options = {}) const {
    return words_of<DataError>([&] { ImageFolder(folder_, options); });
  }
};

TEST_F(Folders, ComeOutOfAnArchive) {
  add("from/pets/cats/1.png");
  ASSERT_EQ(std::system(("tar -C " + path("from") + " -cf " + path("pets.tar") + " pets").c_str()), 0);

  const ImageFolder folder(fetch_archive(path("pets.tar"), {.into = path("data")}).string());

  EXPECT_THAT(names(folder), ElementsAre("data/pets/cats/1.png"));
}

TEST_F(Folders, GiveClassesAndFilesInTorchvisionsOrder) {
  for (const char* name : {"dog/b.png", "dog/a.PNG", "cat/z/1.JPG", "cat/z-1/2.jpeg", "cat/y.jpg", "Zebra/1.png"}) {
    add(name, std::string(name).find('j') != std::string::npos || std::string(name).find('J') != std::string::npos
                  ? "photo.jpg"
                  : "photo.png");
  }
  write("cat/notes.txt", "no image");
  write("list.csv", "no class");

  const ImageFolder folder(folder_);

  EXPECT_THAT(folder.classes(), ElementsAre("Zebra", "cat", "dog"));
  EXPECT_THAT(names(folder),
              ElementsAre("Zebra/1.png", "cat/y.jpg", "cat/z/1.JPG", "cat/z-1/2.jpeg", "dog/a.PNG", "dog/b.png"));
  EXPECT_EQ(folder.target(3), 1);
}

TEST_F(Folders, LeaveHiddenNamesAlone) {
  for (const char* name : {"cat/1.png", "cat/.2.png", "cat/.cache/3.png", ".git/4.png"}) add(name);

  EXPECT_THAT(names(ImageFolder(folder_)), ElementsAre("cat/1.png"));
}

TEST_F(Folders, ThatLinkBackToThemselvesEnd) {
  add("cat/1.png");
  std::filesystem::create_directory_symlink(folder_ / "cat", folder_ / "cat" / "again");

  EXPECT_THAT(names(ImageFolder(folder_)), ElementsAre("cat/1.png"));
}

TEST_F(Folders, GivePixelsFromZeroToOneAndTheClass) {
  add("a/1.png");
  add("b/1.jpg", "photo.jpg");
  ImageFolder folder(folder_);

  const auto example = folder.get(0);

  EXPECT_EQ(example.data.sizes(), (std::vector<int64_t>{3, 30, 44}));
  EXPECT_EQ(example.data[1][14][20].item<float>(), 1);
  EXPECT_TRUE(torch::equal(folder.get(1).target, torch::tensor(1)));
}

TEST_F(Folders, AStackedBatchIsWhatItsExamplesStackTo) {
  for (const char* name : {"a/1.png", "a/2.png", "b/3.png"}) add(name);
  ImageFolder folder(
      folder_, {.steps = {RandomResizedCrop{9, 8}, HorizontalFlip{}}, .mean = kImageNetMean, .std = kImageNetStd});
  const std::vector<size_t> indices{2, 0, 2};

  const auto expected = Stack<>().apply_batch(folder.get_batch(indices));
  const auto stacked = folder.map(Stack<>()).get_batch(indices);

  EXPECT_TRUE(torch::equal(stacked.data, expected.data));
  EXPECT_TRUE(torch::equal(stacked.target, expected.target));
  EXPECT_EQ(stacked.data.sizes(), (std::vector<int64_t>{3, 3, 9, 8}));
  EXPECT_FALSE(torch::equal(stacked.data[0], stacked.data[1])) << "equal files, but the random numbers of each index";
}

TEST_F(Folders, WhatAnEpochGivesDependsOnSeedAndEpochNotOnWorkersOrOrder) {
  for (int i = 0; i < 12; ++i) add(text("a/", 10 + i, ".png"));
  ImageFolder folder(folder_, {.steps = {RandomCrop{20, 20}, HorizontalFlip{}}, .seed = 5});
  const auto epoch = [](ImageFolder folder, size_t workers, size_t batch_size, uint64_t number = 0) {
    std::vector<at::Tensor> seen;
    auto batches =
        loader<SequentialSampler>(folder.map(Stack<>()), torch::data::DataLoaderOptions(batch_size).workers(workers));
    batches.set_epoch(number);
    for (auto& batch : batches) seen.push_back(batch.data);
    return torch::cat(seen);
  };

  const auto first = epoch(folder, 0, 1);
  const auto by_workers = epoch(folder, 3, 2), by_larger_batches = epoch(folder, 2, 5);
  const auto second = epoch(folder, 2, 3, 1);

  EXPECT_TRUE(torch::equal(first, by_workers));
  EXPECT_TRUE(torch::equal(first, by_larger_batches));
  EXPECT_FALSE(torch::equal(first, second));
  EXPECT_TRUE(torch::equal(Subset(folder.map(Stack<>()), {7}).get_batch(0).data[0], first[7]))
      << "a subset keeps each sample's random numbers";
  EXPECT_FALSE(torch::equal(epoch(ImageFolder(folder_, {.steps = {RandomCrop{20, 20}}, .seed = 6}), 0, 4), first));
  static_assert(is_thread_safe<ImageFolder>::value && is_thread_safe<StackedImageFolder>::value);
}

/// What the loader's next two passes give.
template <class Dataset>
std::vector<at::Tensor> two_epochs(Dataset dataset, size_t workers) {
  auto batches = loader<SequentialSampler>(std::move(dataset), torch::data::DataLoaderOptions(2).workers(workers));
  std::vector<at::Tensor> epochs;
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::vector<at::Tensor> seen;
    for (auto& batch : batches) seen.push_back(batch.data);
    epochs.push_back(torch::cat(seen));
  }
  return epochs;
}

TEST_F(Folders, TheEpochOfALoaderReachesImagesBehindEveryWrapper) {
  for (const char* name : {"a/1.png", "a/2.png", "a/3.png", "b/4.png"}) add(name);
  ImageFolder folder(folder_, {.steps = {RandomCrop{5, 5}}});
  auto whole = folder.map(Stack<>());
  const auto same = [](torch::data::Example<> batch) { return batch; };
  const auto expected = two_epochs(whole, 0);
  ASSERT_FALSE(torch::equal(expected[0], expected[1]));
  for (const size_t workers : {0, 2}) {
    SCOPED_TRACE(text("workers ", workers));
    const auto expect = [&](const std::vector<at::Tensor>& given) {
      EXPECT_TRUE(torch::equal(given[0], expected[0]));
      EXPECT_TRUE(torch::equal(given[1], expected[1]));
    };
    expect(two_epochs(whole, workers));
    expect(two_epochs(Subset(whole, {0, 1, 2, 3}), workers));
    expect(two_epochs(data::map(whole, same), workers));
    expect(two_epochs(data::map(Subset(whole, {0, 1, 2, 3}), same), workers));
    expect(two_epochs(Subset(folder, {0, 1, 2, 3}).map(Stack<>()), workers));
    const auto both = two_epochs(concat(Subset(whole, {0, 1}), whole), workers);
    for (size_t epoch = 0; epoch < 2; ++epoch) {
      EXPECT_TRUE(torch::equal(both[epoch].slice(0, 0, 2), expected[epoch].slice(0, 0, 2)));
      EXPECT_TRUE(torch::equal(both[epoch].slice(0, 2), expected[epoch]));
    }
  }
}

TEST_F(Folders, APassOverOnePartLeavesTheEpochOfTheOtherAlone) {
  for (const char* name : {"a/1.png", "a/2.png"}) add(name);
  auto parts = random_split(ImageFolder(folder_, {.steps = {RandomCrop{5, 5}}}).map(Stack<>()), {1, 1}, 3);
  auto train = loader<SequentialSampler>(parts[0], 1), valid = loader<SequentialSampler>(parts[1], 1);
  train.set_epoch(4);
  auto first = train.begin();
  const at::Tensor alone = (*first).data.clone();

  valid.set_epoch(9);
  valid.begin();
  train.set_epoch(4);

  EXPECT_TRUE(torch::equal((*train.begin()).data, alone));
  auto both = concat(parts[0], parts[1]), copy = both;
  copy.set_epoch(7);
  EXPECT_TRUE(torch::equal(both.get_batch(0).data, parts[0].get_batch(0).data)) << "both is still in epoch 0";
  EXPECT_FALSE(torch::equal(copy.get_batch(0).data, both.get_batch(0).data));
}

TEST_F(Folders, AResumedEpochHasTheRandomNumbersOfThatEpoch) {
  for (const char* name : {"a/1.png", "a/2.png", "a/3.png"}) add(name);
  const auto make = [&] {
    return loader<SequentialSampler>(ImageFolder(folder_, {.steps = {RandomCrop{5, 5}}}).map(Stack<>()), 1);
  };
  auto whole = make();
  whole.set_epoch(6);
  auto it = whole.begin();
  const LoaderState state = whole.state();
  ++it;

  auto resumed = make();
  resumed.load_state(state);

  EXPECT_TRUE(torch::equal((*resumed.begin()).data, (*it).data));
}

TEST_F(Folders, ADamagedImageIsNamedWithItsPathAndIndex) {
  add("a/1.png");
  const std::string bad = write("a/2.png", "\x89PNG\r\n\x1a\nand no more");
  auto batches =
      loader<SequentialSampler>(ImageFolder(folder_).map(Stack<>()), torch::data::DataLoaderOptions(2).workers(1));

  try {
    batches.begin();
    FAIL() << "accepted";
  } catch (const DataError& error) {
    EXPECT_EQ(error.path(), bad);
    EXPECT_THAT(error.what(), HasSubstr("failed on sample 1 of 2"));
    EXPECT_THAT(error.what(), HasSubstr("'" + bad + "' is a damaged or truncated PNG"));
  }
}

TEST_F(Folders, ABatchOfDifferentSizesNamesTwoImages) {
  add("a/1.png");
  const std::string other = folder_ / "a/2.ppm.png";
  std::filesystem::copy_file(golden_image("photo.jpg"), other);
  auto cropped = ImageFolder(folder_, {.steps = {ImageFunction([](Image& image, SampleRandom&) {
                                         static thread_local int calls = 0;
                                         if (calls++ % 2) image.crop(0, 0, 5, 6);
                                       })}});
  const std::vector<size_t> indices{0, 1};

  const std::string words = words_of<DataError>([&] { cropped.map(Stack<>()).get_batch(indices); });

  EXPECT_THAT(words, HasSubstr("'" + folder_.string() + "/a/1.png' is 30 x 44, '" + other + "' is 5 x 6"));
}

TEST_F(Folders, AnImageSmallerThanACropIsNamed) {
  add("a/1.png");
  ImageFolder folder(folder_, {.steps = {CenterCrop{31, 31}}});

  const std::string words = words_of<DataError>([&] { folder.get(0); });

  EXPECT_THAT(words, HasSubstr("a step failed on '" + folder_.string() + "/a/1.png'"));
  EXPECT_THAT(words, HasSubstr("of an image of 30 x 44"));
}

TEST_F(Folders, WithoutClassesOrImagesAreRefused) {
  EXPECT_THAT(refused(), HasSubstr("holds no folder, expected one for each class"));
  add("cat/1.png");
  write("dog/1.gif", "GIF");
  EXPECT_THAT(refused(), HasSubstr("class 'dog' in '" + folder_.string() + "/dog' holds no image but 1 other files"));
  EXPECT_THAT(words_of<DataError>([&] { ImageFolder(path("none")); }), HasSubstr("No such file or directory"));
  EXPECT_THAT(words_of<DataError>([&] { ImageFolder(path("cat/1.png")); }), HasSubstr("Not a directory"));
  EXPECT_THROW(ImageFolder(folder_, {.steps = {Resize{0, 0}}}), UsageError);
}

TEST_F(Folders, AnIndexOutOfRangeIsNamed) {
  add("a/1.png");

  EXPECT_THAT(words_of<DataError>([&] { ImageFolder(folder_).get(1); }), HasSubstr("sample 1 of an image folder of 1"));
}

}  // namespace
}  // namespace hasten::data
