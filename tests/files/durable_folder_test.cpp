// Folders appear whole or not at all: every prefix of the calls, with what was not synced lost, leaves the old or the
// new one.
#include "hasten/files/disk/durable_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <random>

#include "files/disk/recording_disk.h"
#include "files/memory_source.h"
#include "hasten/core/error.h"
#include "hasten/files/folders/retention.h"

namespace hasten::files {
namespace {

namespace fs = std::filesystem;
using files::testing::ScratchFolder;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string read_whole(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Saves a folder of two files as a checkpoint is saved: a large file, then the manifest, then the commit.
void save(Disk& disk, const std::string& path, char fill, const CommitOptions& options = {}) {
  const std::string temporary = make_temporary_folder(disk, path, new_save_id());
  const auto file = disk.create(temporary + "/data");
  const std::string chunk(5000, fill);
  for (uint64_t i = 0; i < 3; ++i) file->write_at(i * chunk.size(), chunk.data(), chunk.size());
  file->sync();
  file->close();
  write_file(disk, temporary + "/manifest.json", std::string(10, fill));
  commit_folder(disk, temporary, path, options);
}

/// The letter of the save that lies at `path`, '?' for a mixture, 0 if there is no folder.
char letter_at(const std::string& path) {
  recover_folder(real_disk(), path);
  if (!fs::exists(path)) return 0;
  const std::string data = read_whole(path + "/data"), manifest = read_whole(path + "/manifest.json");
  if (manifest.size() != 10 || data.size() != 15000) return '?';
  return data == std::string(15000, manifest[0]) ? manifest[0] : '?';
}

void copy_tree(const std::string& from, const std::string& to) {
  fs::copy(from, to, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
}

/// Replays every prefix of what `act` does in a folder, whole and with random losses, and checks what lies at "c".
void check_crashes(const std::function<void(const std::string& folder)>& prepare,
                   const std::function<void(Disk&, const std::string& folder)>& act, const std::string& allowed) {
  const ScratchFolder scratch;
  const std::string before = scratch / "before", during = scratch / "during", crashed = scratch / "crashed";
  fs::create_directory(before);
  prepare(before);
  copy_tree(before, during);
  RecordingDisk disk;
  act(disk, during);
  const auto log = disk.calls();
  for (size_t calls = 0; calls <= log.size(); ++calls) {
    for (unsigned seed = 0; seed < 12; ++seed) {
      std::mt19937 random(seed * 1000 + static_cast<unsigned>(calls));
      fs::remove_all(crashed);
      copy_tree(before, crashed);
      CrashOptions options{.calls = calls};
      if (seed > 0) options.choose = [&](uint64_t n) { return n == 0 ? 0 : random() % n; };
      replay(log, during, crashed, options);
      const char letter = letter_at(crashed + "/c");
      const bool fine =
          letter == 0 ? allowed.find('-') != std::string::npos : allowed.find(letter) != std::string::npos;
      ASSERT_TRUE(fine) << "after call " << calls << " of " << log.size() << ", seed " << seed << ": '"
                        << (letter == 0 ? '-' : letter) << "'";
      if (calls == log.size()) {
        ASSERT_EQ(letter, allowed.back()) << "the save had returned, seed " << seed;
      }
    }
  }
}

TEST(DurableFolder, ANewFolderIsThereWholeOrNotAtAll) {
  check_crashes([](const std::string&) {},
                [](Disk& disk, const std::string& folder) { save(disk, folder + "/c", 'n'); }, "-n");
}

TEST(DurableFolder, ReplacingLeavesTheOldOrTheNewOne) {
  check_crashes([](const std::string& folder) { save(real_disk(), folder + "/c", 'o'); },
                [](Disk& disk, const std::string& folder) {
                  save(disk, folder + "/c", 'n', {.is_replaced = [](const std::string&) { return false; }});
                },
                "on");
}

/// A disk whose file system knows no exchange.
class NoExchange : public RecordingDisk {
 public:
  void rename(const std::string& from, const std::string& to, Rename kind) override {
    if (kind == Rename::kExchange) throw DiskError("rename", from, EINVAL);
    RecordingDisk::rename(from, to, kind);
  }
};

TEST(DurableFolder, WithoutExchangeTheOldOneIsMovedAsideAndFound) {
  const ScratchFolder scratch;
  fs::create_directory(scratch / "before");
  save(real_disk(), scratch / "before/c", 'o');
  copy_tree(scratch / "before", scratch / "during");
  NoExchange disk;
  save(disk, scratch / "during/c", 'n');
  const auto log = disk.calls();
  for (size_t calls = 0; calls <= log.size(); ++calls) {
    fs::remove_all(scratch / "crashed");
    copy_tree(scratch / "before", scratch / "crashed");
    replay(log, scratch / "during", scratch / "crashed", {.calls = calls});
    const char letter = letter_at(scratch / "crashed/c");
    ASSERT_TRUE(letter == 'o' || letter == 'n') << "after call " << calls;
  }
}

TEST(DurableFolder, AFailureAtAnyCallKeepsTheOldOne) {
  for (size_t call = 0; call < 200; ++call) {
    const ScratchFolder folder;
    save(real_disk(), folder / "c", 'o');
    RecordingDisk disk;
    disk.fail_at(call, call % 2 == 0 ? ENOSPC : EIO);
    bool failed = false;
    try {
      save(disk, folder / "c", 'n');
    } catch (const DiskError& error) {
      failed = true;
      EXPECT_TRUE(error.code() == ENOSPC || error.code() == EIO);
    }
    const char letter = letter_at(folder / "c");
    ASSERT_TRUE(letter == 'o' || letter == 'n') << "failing call " << call;
    if (!failed) {
      ASSERT_EQ(letter, 'n');
      EXPECT_GT(call, 10u);
      return;
    }
  }
  FAIL() << "the save makes more calls than expected";
}

TEST(DurableFolder, FilesOfTheUserAreCarriedOver) {
  const ScratchFolder folder;
  save(real_disk(), folder / "c", 'o');
  std::ofstream(folder / "c/notes.txt") << "mine";
  fs::create_directory(folder / "c/sub");
  std::ofstream(folder / "c/sub/deep.txt") << "mine too";
  fs::create_symlink("notes.txt", folder / "c/link");
  std::ofstream(folder / "c/old_shard") << "ours";

  save(real_disk(), folder / "c", 'n', {.is_replaced = [](const std::string& name) { return name == "old_shard"; }});

  EXPECT_EQ(letter_at(folder / "c"), 'n');
  EXPECT_EQ(read_whole(folder / "c/notes.txt"), "mine");
  EXPECT_EQ(read_whole(folder / "c/sub/deep.txt"), "mine too");
  EXPECT_TRUE(fs::is_symlink(folder / "c/link"));
  EXPECT_FALSE(fs::exists(folder / "c/old_shard"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

/// A disk whose file system has no hard links.
class NoLinks : public RecordingDisk {
 public:
  void link(const std::string& from, const std::string&) override { throw DiskError("link", from, EPERM); }
};

TEST(DurableFolder, WithoutHardLinksFilesOfTheUserAreCopiedAndOnDiskBeforeTheCommit) {
  const ScratchFolder folder;
  save(real_disk(), folder / "c", 'o');
  std::ofstream(folder / "c/notes.txt") << "mine";
  NoLinks disk;

  save(disk, folder / "c", 'n', {.is_replaced = [](const std::string&) { return false; }});

  EXPECT_EQ(read_whole(folder / "c/notes.txt"), "mine");
  size_t synced = 0, renamed = 0;
  const auto calls = disk.calls();
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].kind == DiskCall::Kind::kSync && calls[i].path.ends_with("notes.txt")) synced = i;
    if (calls[i].kind == DiskCall::Kind::kRename) renamed = i;
  }
  EXPECT_GT(synced, 0u);
  EXPECT_LT(synced, renamed);
}

TEST(DurableFolder, AFileInThePlaceIsRefusedAndALinkIsFollowed) {
  const ScratchFolder folder;
  std::ofstream(folder / "f") << "x";
  EXPECT_THROW(make_temporary_folder(real_disk(), folder / "f", "00"), UsageError);
  fs::create_directory(folder / "real");
  fs::create_directory_symlink("real", folder / "link");
  EXPECT_EQ(resolved_folder(folder / "link/"), folder / "real");
  fs::create_symlink("loop", folder / "loop");
  EXPECT_THROW(resolved_folder(folder / "loop"), UsageError);
}

TEST(DurableFolder, LeftoversGoWhenTheyAreOldAndNobodyKeepsThem) {
  const ScratchFolder folder;
  const std::string a = make_temporary_folder(real_disk(), folder / "c", "aa11"),
                    b = make_temporary_folder(real_disk(), folder / "c", "bb22");
  fs::create_directory(folder / ".c.old-cc33");
  std::ofstream(folder / ".c.old-cc33/manifest.json") << "kept";
  fs::create_directory(folder / ".c.tmp-notours");

  EXPECT_TRUE(remove_leftovers(real_disk(), folder.path()).empty());  // none is an hour old
  const auto removed = remove_leftovers(real_disk(), folder.path(), std::chrono::seconds(0), {"bb22"});

  EXPECT_EQ(removed, std::vector<std::string>{".c.tmp-aa11"});
  EXPECT_TRUE(fs::exists(b));
  EXPECT_EQ(read_whole(folder / "c/manifest.json"), "kept");  // put back, as nothing had taken its place
  EXPECT_TRUE(fs::exists(folder / ".c.tmp-notours"));
}

TEST(DurableFolder, TwoRunsDoNotShareAFolder) {
  const ScratchFolder folder;
  {
    const FolderLock lock(folder.path());
    EXPECT_THAT([&] { FolderLock second(folder.path()); },
                ThrowsMessage<UsageError>(HasSubstr(text("process ", getpid()))));
    EXPECT_NO_THROW(FolderLock(folder.path(), true));
  }
  EXPECT_NO_THROW(FolderLock(folder.path()));
}

TEST(Retention, NumbersAreNumbersAndTheNewestStays) {
  EXPECT_EQ(checkpoint_number("checkpoint_10"), 10);
  for (const char* other :
       {"checkpoint_", "checkpoint_best", "checkpoint_1x", "checkpoint_-1", "x_1", ".checkpoint_1.tmp-00"}) {
    EXPECT_EQ(checkpoint_number(other), std::nullopt) << other;
  }
  EXPECT_EQ(to_delete({9, 10, 100}, {.total_limit = 2}), std::vector<int64_t>{9});
  EXPECT_EQ(to_delete({1, 2, 3, 4, 5, 6}, {.total_limit = 1, .keep_every = 2}), (std::vector<int64_t>{1, 3, 5}));
  EXPECT_TRUE(to_delete({1, 2, 3}, {}).empty());
  for (int64_t limit = -1; limit < 6; ++limit) {
    for (int64_t every = 0; every < 4; ++every) {
      const auto gone = to_delete({3, 1, 2, 5, 8}, {.total_limit = limit, .keep_every = every});
      EXPECT_EQ(std::find(gone.begin(), gone.end(), 8), gone.end());
    }
  }
}

TEST(Retention, FoldersWithoutAManifestAreNotComplete) {
  const ScratchFolder folder;
  fs::create_directories(folder / "checkpoint_2");
  fs::create_directories(folder / "checkpoint_10");
  std::ofstream(folder / "checkpoint_10/model.safetensors") << "of another program";
  fs::create_directories(folder / ".checkpoint_3.old-00ff");

  const auto found = find_checkpoints(folder.path());

  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].number, 2);
  EXPECT_THAT(found[0].problem, HasSubstr("manifest.json"));
  EXPECT_EQ(found[1].number, 3);  // put back
  EXPECT_EQ(found[2].problem, "");
}

}  // namespace
}  // namespace hasten::files
