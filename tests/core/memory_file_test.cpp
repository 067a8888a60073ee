#include "hasten/core/memory_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>

#include "hasten/core/descriptor_passing.h"
#include "hasten/core/error.h"
#include "support/folder.h"
#include "support/sanitizers.h"

namespace hasten {
namespace {

using MemoryFileInFolder = testing::InFolder;

TEST(MemoryFile, TwoMappingsShowTheSameBytes) {
  const auto file = MemoryFile::create("test", 8192);
  const Mapping writable = file.map(Mapping::Access::kReadWrite);
  const Mapping readable = file.map(Mapping::Access::kRead);

  std::memcpy(writable.data() + 5000, "abc", 4);

  EXPECT_NE(writable.data(), readable.data());
  EXPECT_STREQ(reinterpret_cast<const char*>(readable.data()) + 5000, "abc");
}

TEST(MemoryFile, AMappingOutlivesItsFile) {
  Mapping mapping = MemoryFile::create("test", 4096).map(Mapping::Access::kReadWrite);
  mapping.data()[4095] = std::byte{7};

  Mapping moved = std::move(mapping);

  EXPECT_EQ(moved.data()[4095], std::byte{7});
  EXPECT_EQ(mapping.data(), nullptr);
}

TEST(MemoryFile, AWriteThroughAReadMappingEndsTheProcess) {
  const auto file = MemoryFile::create("test", 4096);
  const Mapping readable = file.map(Mapping::Access::kRead);

  EXPECT_EXIT(readable.data()[0] = std::byte{1}, testing::ended_by(SIGSEGV), "");
}

TEST(MemoryFile, ASizeAboveTheLimitOfFilesIsRefusedAndTheProcessLives) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{4096, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);

  EXPECT_THROW(MemoryFile::create("test", 8192), std::system_error);

  setrlimit(RLIMIT_FSIZE, &before);
}

TEST_F(MemoryFileInFolder, ANamedFileReservesItsSpace) {
  const auto file = MemoryFile::create_at(path("state"), 1 << 20);

  EXPECT_EQ(std::filesystem::file_size(path("state")), 1u << 20);
  EXPECT_EQ(file.size(), 1 << 20);
}

TEST_F(MemoryFileInFolder, AFolderThatIsMissingIsNamed) {
  const auto words = testing::words_of<DataError>([&] { MemoryFile::create_at(path("no/state"), 10); });

  EXPECT_NE(words.find(path("no/state")), std::string::npos);
}

TEST(DescriptorPassing, AnotherProcessGetsTheSameMemory) {
  const auto file = MemoryFile::create("test", 4096);
  DescriptorOffer offer;
  const pid_t child = fork();
  if (child == 0) {
    const auto mine = MemoryFile::adopt(fetch_descriptor(offer.ticket()), 4096);
    mine.map(Mapping::Access::kReadWrite).data()[17] = std::byte{42};
    _exit(0);
  }

  offer.serve(file.descriptor(), 1, std::chrono::seconds(20));
  int status = 0;
  waitpid(child, &status, 0);

  EXPECT_EQ(status, 0);
  EXPECT_EQ(file.map(Mapping::Access::kRead).data()[17], std::byte{42});
}

TEST(DescriptorPassing, ACallerWithAnotherSecretGetsNothing) {
  const auto file = MemoryFile::create("test", 4096);
  DescriptorOffer offer;
  std::string wrong = offer.ticket();
  wrong.back() = wrong.back() == '0' ? '1' : '0';
  std::string first, second;
  std::thread caller([&] {
    first = testing::words_of<std::runtime_error>([&] { fetch_descriptor(wrong); });
    second = testing::words_of<std::runtime_error>([&] { close(fetch_descriptor(offer.ticket())); });
  });

  offer.serve(file.descriptor(), 1, std::chrono::seconds(20));
  caller.join();

  EXPECT_NE(first.find("not handed over"), std::string::npos);
  EXPECT_EQ(second, "no error");
}

TEST(DescriptorPassing, AMissingCallerEndsTheWait) {
  const auto file = MemoryFile::create("test", 4096);
  DescriptorOffer offer;

  EXPECT_THROW(offer.serve(file.descriptor(), 1, std::chrono::milliseconds(1)), std::runtime_error);
}

TEST(MemoryFile, AHandedOverFileOfAnotherSizeIsRefused) {
  const auto file = MemoryFile::create("test", 4096);

  EXPECT_THROW(MemoryFile::adopt(dup(file.descriptor()), 8192), std::runtime_error);
}

}  // namespace
}  // namespace hasten
