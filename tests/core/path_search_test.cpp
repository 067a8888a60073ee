#include "hasten/core/path_search.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "hasten/core/file.h"

namespace hasten::core {
namespace {

namespace fs = std::filesystem;

TEST(PathSearch, TheFirstExecutableFileOfThatNameIsFound) {
  std::string folder = ::testing::TempDir() + "hasten_path_XXXXXX";
  folder = mkdtemp(folder.data());
  for (const char* name : {"a/tool", "b/tool", "c/tool"}) fs::create_directories(fs::path(folder) / name);
  for (const char* name : {"b/tool", "c/tool"}) {
    fs::remove(fs::path(folder) / name);
    std::ofstream(fs::path(folder) / name) << "#!/bin/sh\n";
  }
  fs::permissions(folder + "/c/tool", fs::perms::owner_all);
  const auto environment = Environment::of({{"PATH", folder + "/a:" + folder + "/b:" + folder + "/c"}});

  EXPECT_EQ(find_on_path("tool", environment), folder + "/c/tool");
  EXPECT_EQ(find_on_path(folder + "/c/tool", environment), folder + "/c/tool");
  EXPECT_EQ(find_on_path(folder + "/b/tool", environment), "");
  EXPECT_EQ(find_on_path("other", environment), "");
  EXPECT_EQ(read_file(folder + "/b/tool"), "#!/bin/sh\n");
  EXPECT_EQ(read_file(folder + "/a/tool"), std::nullopt);
  EXPECT_EQ(read_file(folder + "/none"), std::nullopt);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace hasten::core
