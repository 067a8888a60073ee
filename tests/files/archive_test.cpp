// Archives: unpacked once, checked, and never outside of their folder.
#include "hasten/files/hub/archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "files/hub_server.h"
#include "files/python/zip_writer.h"
#include "hasten/core/hash.h"
#include "hasten/files/hub/fetch_file.h"
#include "support/folder.h"

namespace hasten::files {
namespace {

namespace fs = std::filesystem;
using hasten::testing::InFolder;
using hasten::testing::words_of;
using ::testing::HasSubstr;

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Archives : public InFolder {
 protected:
  /// pets.tgz with pets/{readme.txt, LONG/cat_1.txt of 3 MB}, made by the system's tar.
  std::string tarball() {
    write("from/pets/readme.txt", "two pets\n");
    write("from/pets/" + kLong + "/cat_1.txt", std::string(3'000'000, 'c'));
    EXPECT_EQ(std::system(("tar -C " + path("from") + " -czf " + path("pets.tgz") + " pets").c_str()), 0);
    return path("pets.tgz");
  }
  /// A zip of stored entries.
  std::string zip(const std::string& name, const std::vector<std::pair<std::string, std::string>>& entries) {
    std::vector<ZipPart> parts;
    std::vector<uint32_t> crcs;
    for (const auto& [entry, body] : entries) {
      parts.push_back({entry, body.size()});
      crcs.push_back(crc32_of(0, body.data(), body.size()));
    }
    const auto layout = lay_out_zip(parts);
    std::string bytes(layout.file_bytes, '\0');
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto header = zip_local_header(parts, layout, i, crcs[i]);
      bytes.replace(layout.header_at[i], header.size(), header);
      bytes.replace(layout.body_at[i], parts[i].size, entries[i].second);
    }
    const auto directory = zip_directory(parts, layout, crcs);
    bytes.replace(layout.directory_at, directory.size(), directory);
    return write(name, bytes);
  }
  const std::string kLong = std::string(120, 'l') + "/" + std::string(120, 'm');
};

TEST_F(Archives, ATarballIsUnpackedOnceWithItsTopFolderAsTheFolder) {
  const auto source = tarball();

  const auto folder = fetch_archive(source, {.into = path("data")});
  std::ofstream(folder / "mark") << "kept";
  const auto again = fetch_archive(source, {.into = path("data")});

  EXPECT_EQ(folder, fs::path(path("data")) / "pets");
  EXPECT_EQ(again, folder);
  EXPECT_EQ(bytes_of(folder / "readme.txt"), "two pets\n");
  EXPECT_EQ(bytes_of(folder / kLong / "cat_1.txt"), std::string(3'000'000, 'c'));
  EXPECT_TRUE(fs::exists(folder / "mark"));
  EXPECT_FALSE(fs::exists(fetch_archive(source, {.into = path("data"), .force = true}) / "mark"));
}

TEST_F(Archives, AZipOfSeveralFilesGetsAFolderOfItsName) {
  const auto folder =
      fetch_archive(zip("set.zip", {{"a.txt", "one"}, {"b/c.txt", "two"}}), {.into = path("data"), .name = "other"});

  EXPECT_EQ(folder, fs::path(path("data")) / "other");
  EXPECT_EQ(bytes_of(folder / "b/c.txt"), "two");
}

TEST_F(Archives, WhatIsWrongIsNamedAndLeavesNothing) {
  const auto source = tarball();
  std::ofstream(path("cut.tgz"), std::ios::binary) << bytes_of(source).substr(0, 900);
  const auto words = [&](const std::string& from, FetchOptions options) {
    options.into = path("data");
    return words_of<Error>([&] { fetch_archive(from, options); });
  };

  EXPECT_THAT(words(source, {.sha256 = std::string(64, '0')}),
              HasSubstr("has the SHA-256 " + core::sha256_hex(bytes_of(source))));
  EXPECT_THAT(words(source, {.sha256 = "12"}), HasSubstr("expected 64 hexadecimal digits"));
  EXPECT_THAT(words(zip("bad.zip", {{"../../outside.txt", "x"}}), {}), HasSubstr("would lie outside"));
  EXPECT_THAT(words(path("cut.tgz"), {}), HasSubstr("damaged"));
  EXPECT_THAT(words(path("none.tar"), {}), HasSubstr("cannot read"));
  EXPECT_THAT(words(path("none.rar"), {}), HasSubstr("expected .zip"));
  EXPECT_THAT(words_of<UsageError>([&] { fetch_archive(source, {}); }), HasSubstr("FetchOptions::into"));
  for (const auto& entry : fs::directory_iterator(path("data")))
    EXPECT_TRUE(entry.path().filename().string().ends_with(".lock")) << entry.path();
}

TEST_F(Archives, OneOfSeveralCallersDownloads) {
  const auto bytes = bytes_of(tarball());
  std::atomic<int> served = 0;
  testing::HubServer server([&](const testing::HubRequest& request) {
    ++served;
    return request.path == "/pets.tgz" ? testing::HubAnswer{.body = bytes} : testing::HubAnswer{.status = 404};
  });
  const FetchOptions options{.sha256 = core::sha256_hex(bytes), .into = path("data")};

  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back(
        [&] { EXPECT_EQ(bytes_of(fetch_archive(server.url() + "/pets.tgz", options) / "readme.txt"), "two pets\n"); });
  for (auto& caller : callers) caller.join();

  EXPECT_EQ(served, 1);
  EXPECT_THAT(words_of<DataError>([&] { fetch_archive(server.url() + "/dogs.tgz", options); }),
              HasSubstr("status 404"));
}

TEST_F(Archives, ASingleFileIsFetchedOnceAndCheckedAndLeavesNothingElse) {
  int served = 0;
  testing::HubServer server([&](const testing::HubRequest& request) {
    ++served;
    return request.path.starts_with("/rows.gz") ? testing::HubAnswer{.body = "some rows"}
                                                : testing::HubAnswer{.status = 404};
  });
  const FetchOptions options{.sha256 = core::sha256_hex("some rows"), .into = path("data")};

  EXPECT_EQ(fetch_file(server.url() + "/rows.gz?version=1", options), path("data/rows.gz"));
  EXPECT_EQ(bytes_of(fetch_file(server.url() + "/rows.gz", options)), "some rows");
  EXPECT_EQ(served, 1);
  EXPECT_EQ(bytes_of(fetch_file(write("local.txt", "mine"), {.into = path("data"), .name = "other.txt"})), "mine");
  EXPECT_THAT(words_of<DataError>([&] { fetch_file(server.url() + "/gone", options); }), HasSubstr("status 404"));
  EXPECT_THAT(words_of<DataError>([&] {
                fetch_file(server.url() + "/rows.gz",
                           {.sha256 = std::string(64, 'a'), .into = path("data"), .force = true});
              }),
              HasSubstr("expected aaaa"));
  EXPECT_THAT(words_of<DataError>([&] { fetch_file(path("nowhere"), {.into = path("data")}); }),
              HasSubstr("cannot copy"));
  EXPECT_THAT(words_of<UsageError>([&] { fetch_file("http://host/", {.into = path("data")}); }),
              HasSubstr("FetchOptions::name"));
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(path("data"))) {
    if (!entry.path().filename().string().ends_with(".lock")) left.push_back(entry.path().filename());
  }
  EXPECT_THAT(left, ::testing::UnorderedElementsAre("rows.gz", "other.txt"));
}

}  // namespace
}  // namespace hasten::files
