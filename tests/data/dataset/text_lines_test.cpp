#include "hasten/data/dataset/text_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/data/loader/loader.h"
#include "support/folder.h"

namespace hasten::data {
namespace {

using ::testing::ElementsAre;
using testing::InFolder;
using testing::words_of;

class Lines : public InFolder {
 protected:
  std::vector<std::string> lines(const std::string& bytes) const {
    TextLines dataset(write("text", bytes));
    std::vector<std::string> all;
    for (size_t i = 0; i < *dataset.size(); ++i) all.push_back(dataset.get(i));
    return all;
  }
};

TEST_F(Lines, APointerOfGitLfsIsNoTextToTrainOn) {
  EXPECT_THAT(words_of<DataError>([&] { lines("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"); }),
              ::testing::HasSubstr("Git LFS"));
  EXPECT_THAT(lines("<html>\n"), ElementsAre("<html>"));
}

TEST_F(Lines, AreGivenWithoutTheirEnds) {
  EXPECT_THAT(lines("one\ntwo\r\n\nlast"), ElementsAre("one", "two", "", "last"));
  EXPECT_THAT(lines("one\n"), ElementsAre("one"));
  EXPECT_THAT(lines("\n\n"), ElementsAre("", ""));
  EXPECT_THAT(lines("a\rb\r"), ElementsAre("a\rb\r"));
}

TEST_F(Lines, AByteOrderMarkIsNoText) {
  EXPECT_THAT(lines("\xef\xbb\xbfone\ntwo"), ElementsAre("one", "two"));
}

TEST_F(Lines, AnEmptyFileHasNone) {
  EXPECT_THAT(lines(""), ElementsAre());
  EXPECT_THAT(lines("\xef\xbb\xbf"), ElementsAre());
}

TEST_F(Lines, GoThroughALoaderWithWorkers) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += std::to_string(i) + "\n";
  auto batches = loader<torch::data::samplers::SequentialSampler>(TextLines(write("text", text)),
                                                                  torch::data::DataLoaderOptions(7).workers(2));
  int next = 0;

  for (const auto& batch : batches) {
    for (const auto& line : batch) EXPECT_EQ(line, std::to_string(next++));
  }

  EXPECT_EQ(next, 100);
  static_assert(is_thread_safe<TextLines>::value);
}

TEST_F(Lines, AMissingFileOrAFolderIsNamed) {
  EXPECT_EQ(
      words_of<DataError>([&] { TextLines(path("none")); }),
      "[data] cannot open '" + path("none") + "': No such file or directory; expected a text file. Check the path.");
  EXPECT_NE(words_of<DataError>([&] { TextLines dataset(folder_); }).find("it is a folder"), std::string::npos);
}

TEST_F(Lines, ALineOutOfRangeIsNamed) {
  TextLines dataset(write("text", "one\n"));

  EXPECT_NE(words_of<DataError>([&] { dataset.get(1); }).find("sample 1 of a text file of 1 samples"),
            std::string::npos);
}

}  // namespace
}  // namespace hasten::data
