// Downloads against a small local server: cache, resuming, hashes, refusals, offline.
#include "hasten/files/hub.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "files/hub_server.h"
#include "files/memory_source.h"
#include "hasten/core/error.h"
#include "hasten/core/hash.h"

namespace hasten::hub {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using files::testing::HubAnswer;
using files::testing::HubRequest;
using files::testing::HubServer;
using files::testing::ScratchFolder;

const std::string kCommit(40, 'c');

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A repository org/name with some files of one revision.
struct Repository {
  std::map<std::string, std::string> files = {{"config.json", "{}"}, {"sub/model.bin", std::string(100'000, 'm')}};
  std::map<std::string, HubAnswer> special = {};   ///< by path
  bool resumes = true;
  std::atomic<size_t> cut = SIZE_MAX;              ///< of the next GET
  std::string wrong_etag = {};

  HubAnswer operator()(const HubRequest& request) {
    if (const auto found = special.find(request.path); found != special.end()) return found->second;
    if (request.path.starts_with("/api/models/org/name/revision/")) return {.body = "{\"sha\": \"" + kCommit + "\"}"};
    if (request.path.starts_with("/api/models/org/name/tree/")) {
      std::string list = "[{\"type\": \"directory\", \"path\": \"sub\"}";
      for (const auto& [name, bytes] : files) list += ", {\"type\": \"file\", \"path\": \"" + name + "\"}";
      return {.body = list + "]"};
    }
    const std::string prefix = "/org/name/resolve/";
    if (!request.path.starts_with(prefix)) return {.status = 404, .headers = {{"X-Error-Code", "RepoNotFound"}}};
    const std::string rest = request.path.substr(prefix.size()), revision = rest.substr(0, rest.find('/'));
    if (revision != "main" && revision != kCommit) return {.status = 404, .headers = {{"X-Error-Code", "RevisionNotFound"}}};
    const auto file = files.find(rest.substr(revision.size() + 1));
    if (file == files.end()) return {.status = 404, .headers = {{"X-Error-Code", "EntryNotFound"}, {"X-Repo-Commit", kCommit}}};
    HubAnswer answer{.headers = {{"X-Repo-Commit", kCommit}, {"ETag", '"' + (wrong_etag.empty() ? core::sha256_hex(file->second) : wrong_etag) + '"'}}, .body = file->second};
    if (request.method == "GET") answer.cut_after = cut.exchange(SIZE_MAX);
    if (const auto range = request.headers.find("range"); range != request.headers.end() && resumes) {
      answer.status = 206;
      answer.body = answer.body.substr(std::stoul(range->second.substr(6)));
    }
    return answer;
  }
};

class Hub : public ::testing::Test {
 protected:
  Environment environment(std::map<std::string, std::string> more = {}) const {
    more.emplace("HF_HOME", folder_ / "home");
    more.emplace("HF_ENDPOINT", server_.url());
    return Environment::of(more);
  }
  std::string get(const std::string& file, const DownloadOptions& options = {}) const { return download("org/name", file, options, environment()); }
  std::string repo_folder() const { return folder_ / "home/hub/models--org--name"; }

  ScratchFolder folder_;
  Repository repository_;
  HubServer server_{[this](const HubRequest& request) { return repository_(request); }};
};

TEST_F(Hub, FilesLieInTheCacheAsPythonPutsThem) {
  const std::string path = get("sub/model.bin");

  const std::string etag = core::sha256_hex(repository_.files["sub/model.bin"]);
  EXPECT_EQ(path, repo_folder() + "/snapshots/" + kCommit + "/sub/model.bin");
  EXPECT_EQ(contents(path), repository_.files["sub/model.bin"]);
  EXPECT_EQ(fs::read_symlink(path), "../../../blobs/" + etag);
  EXPECT_EQ(contents(repo_folder() + "/refs/main"), kCommit);
  EXPECT_TRUE(fs::exists(folder_ / "home/hub/CACHEDIR.TAG"));
  EXPECT_TRUE(fs::exists(folder_ / ("home/hub/.locks/models--org--name/" + etag + ".lock")));
  const size_t before = server_.requests().size();
  EXPECT_EQ(get("sub/model.bin"), path);
  EXPECT_EQ(server_.requests().size(), before + 1);  // one HEAD and no GET
  EXPECT_EQ(get("sub/model.bin", {.revision = kCommit}), path);
  EXPECT_EQ(server_.requests().size(), before + 1);  // a commit in the cache needs no request
}

TEST_F(Hub, ABrokenTransferGoesOnWhereItStopped) {
  repository_.cut = 30'000;

  EXPECT_EQ(contents(get("sub/model.bin")), repository_.files["sub/model.bin"]);

  std::vector<std::string> ranges;
  for (const HubRequest& request : server_.requests()) {
    if (const auto range = request.headers.find("range"); range != request.headers.end()) ranges.push_back(range->second);
  }
  ASSERT_EQ(ranges.size(), 1u);
  EXPECT_NE(ranges[0], "bytes=0-");
}

TEST_F(Hub, AServerThatDoesNotResumeIsAskedAgain) {
  repository_.cut = 30'000;
  repository_.resumes = false;

  EXPECT_EQ(contents(get("sub/model.bin")), repository_.files["sub/model.bin"]);
}

TEST_F(Hub, WrongContentsAreNeverVisible) {
  repository_.wrong_etag = std::string(64, 'a');

  EXPECT_THAT([&] { get("config.json"); }, ThrowsMessage<DataError>(HasSubstr("SHA-256")));

  EXPECT_FALSE(fs::exists(repo_folder() + "/snapshots/" + kCommit + "/config.json"));
  EXPECT_TRUE(fs::is_empty(repo_folder() + "/blobs"));
}

TEST_F(Hub, GitsHashesAreCheckedToo) {
  repository_.wrong_etag = core::sha1_hex(std::string("blob 2\0{}", 9));
  EXPECT_EQ(contents(get("config.json")), "{}");
  repository_.wrong_etag = std::string(40, 'b');
  EXPECT_THAT([&] { get("config.json", {.force_download = true}); }, ThrowsMessage<DataError>(HasSubstr("Git's SHA-1")));
}

TEST_F(Hub, EachRefusalHasItsOwnWords) {
  repository_.special["/gated/x/resolve/main/f"] = {.status = 403, .headers = {{"X-Error-Code", "GatedRepo"}}};
  repository_.special["/private/x/resolve/main/f"] = {.status = 401};
  repository_.special["/no/hub/resolve/main/f"] = {.status = 200, .headers = {{"ETag", "\"1\""}}};
  const auto refused = [&](const std::string& repo, const std::string& file, const DownloadOptions& options, const char* why) {
    EXPECT_THAT([&] { download(repo, file, options, environment()); }, ThrowsMessage<UsageError>(HasSubstr(why))) << repo;
  };
  refused("gated/x", "f", {}, "gated");
  refused("private/x", "f", {}, "private");
  refused("none/x", "f", {}, "there is no repository");
  refused("org/name", "nothing", {}, "no file 'nothing'");
  refused("org/name", "config.json", {.revision = "v9"}, "no revision 'v9'");
  refused("no/hub", "f", {}, "X-Repo-Commit");
  refused("a/b/c", "f", {}, "no repository's name");
  refused("org/name", "../x", {}, "no file of a repository");
  refused("org/name", "f", {.repo_type = "modle"}, "did you mean 'model'?");
  EXPECT_TRUE(fs::exists(repo_folder() + "/.no_exist/" + kCommit + "/nothing"));
}

TEST_F(Hub, TheTokenGoesToTheHubAndNotToItsStorage) {
  HubServer storage([&](const HubRequest&) { return HubAnswer{.body = "{}"}; });
  const std::string etag = core::sha256_hex("{}");
  repository_.special["/org/name/resolve/main/config.json"] = {
      .status = 302, .headers = {{"Location", storage.url() + "/blob"}, {"X-Repo-Commit", kCommit}, {"X-Linked-Etag", '"' + etag + '"'}, {"X-Linked-Size", "2"}}};

  EXPECT_EQ(contents(get("config.json", {.token = "secret"})), "{}");

  for (const HubRequest& request : server_.requests()) EXPECT_EQ(request.headers.at("authorization"), "Bearer secret");
  ASSERT_EQ(storage.requests().size(), 1u);
  EXPECT_FALSE(storage.requests()[0].headers.contains("authorization"));
}

TEST_F(Hub, OfflineTheCacheAnswers) {
  const std::string path = get("config.json");
  const size_t before = server_.requests().size();

  EXPECT_EQ(download("org/name", "config.json", {}, environment({{"HF_HUB_OFFLINE", "1"}})), path);
  EXPECT_EQ(get("config.json", {.local_files_only = true}), path);
  EXPECT_EQ(server_.requests().size(), before);
  EXPECT_THAT([&] { get("sub/model.bin", {.local_files_only = true}); }, ThrowsMessage<UsageError>(HasSubstr("not in the cache")));
  EXPECT_EQ(get("config.json", {.etag_timeout_s = 2, .endpoint = "http://127.0.0.1:9"}), path);  // nothing listens there
  EXPECT_THROW(get("sub/model.bin", {.etag_timeout_s = 2, .endpoint = "http://127.0.0.1:9"}), CommError);
}

TEST_F(Hub, ASnapshotHasTheFilesThatThePatternsSelect) {
  const std::string all = snapshot("org/name", {}, environment());
  EXPECT_EQ(contents(all + "/config.json"), "{}");
  EXPECT_EQ(contents(all + "/sub/model.bin").size(), 100'000u);
  const std::string some = snapshot("org/name", {.download = {.local_dir = folder_ / "local"}, .allow_patterns = {"*.json"}}, environment());
  EXPECT_EQ(some, folder_ / "local");
  EXPECT_TRUE(fs::exists(folder_ / "local/config.json"));
  EXPECT_FALSE(fs::exists(folder_ / "local/sub/model.bin"));
  EXPECT_TRUE(fs::exists(folder_ / "local/.cache/huggingface/download/config.json.metadata"));
}

TEST_F(Hub, WithoutLinksFilesAreCopies) {
  const std::string path = download("org/name", "config.json", {}, environment({{"HF_HUB_DISABLE_SYMLINKS", "1"}}));
  EXPECT_FALSE(fs::is_symlink(path));
  EXPECT_EQ(contents(path), "{}");
}

TEST(HubCache, TheRootFollowsTheVariables) {
  EXPECT_EQ(cache_root(Environment::of({{"HOME", "/h"}})), "/h/.cache/huggingface/hub");
  EXPECT_EQ(cache_root(Environment::of({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}})), "/x/huggingface/hub");
  EXPECT_EQ(cache_root(Environment::of({{"HF_HOME", "/y"}, {"XDG_CACHE_HOME", "/x"}})), "/y/hub");
  EXPECT_EQ(cache_root(Environment::of({{"HF_HUB_CACHE", ""}, {"HUGGINGFACE_HUB_CACHE", "/z"}})), "/z");
  EXPECT_EQ(cache_root(Environment::of({{"HF_HUB_CACHE", "/c"}, {"HF_HOME", "/y"}})), "/c");
}

}  // namespace
}  // namespace hasten::hub
