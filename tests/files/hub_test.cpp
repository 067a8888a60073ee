// Downloads against a small local server: cache, resuming, hashes, refusals, offline.
#include "hasten/files/hub/hub.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "files/hub_server.h"
#include "files/memory_source.h"
#include "hasten/core/error.h"
#include "hasten/core/hash.h"
#include "hasten/files/hub/hub_headers.h"
#include "hasten/files/safetensors/safetensors_header.h"

namespace hasten::hub {
namespace {

namespace fs = std::filesystem;
using files::testing::HubAnswer;
using files::testing::HubRequest;
using files::testing::HubServer;
using files::testing::ScratchFolder;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::string kCommit(40, 'c');

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A repository org/name with some files of one revision.
struct Repository {
  std::map<std::string, std::string> files = {{"config.json", "{}"}, {"sub/model.bin", std::string(100'000, 'm')}};
  std::map<std::string, HubAnswer> special = {};  ///< by path
  bool resumes = true;
  std::atomic<size_t> cut = SIZE_MAX;  ///< of the next GET
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
    if (revision != "main" && revision != kCommit)
      return {.status = 404, .headers = {{"X-Error-Code", "RevisionNotFound"}}};
    const auto file = files.find(rest.substr(revision.size() + 1));
    if (file == files.end())
      return {.status = 404, .headers = {{"X-Error-Code", "EntryNotFound"}, {"X-Repo-Commit", kCommit}}};
    HubAnswer answer{
        .headers = {{"X-Repo-Commit", kCommit},
                    {"ETag", '"' + (wrong_etag.empty() ? core::sha256_hex(file->second) : wrong_etag) + '"'}},
        .body = file->second};
    if (request.method == "GET") answer.cut_after = cut.exchange(SIZE_MAX);
    if (const auto range = request.headers.find("range"); range != request.headers.end() && resumes) {
      const std::string wanted = range->second.substr(6), last = wanted.substr(wanted.find('-') + 1);
      const size_t begin = std::stoul(wanted), size = answer.body.size();
      const size_t end = last.empty() ? size : std::min(size, std::stoul(last) + 1);
      answer.status = 206;
      answer.headers["Content-Range"] =
          "bytes " + std::to_string(begin) + "-" + std::to_string(end - 1) + "/" + std::to_string(size);
      answer.body = answer.body.substr(begin, end - begin);
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
  std::string get(const std::string& file, const DownloadOptions& options = {}) const {
    return download("org/name", file, options, environment());
  }
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
    if (const auto range = request.headers.find("range"); range != request.headers.end())
      ranges.push_back(range->second);
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
  EXPECT_THAT([&] { get("config.json", {.force_download = true}); },
              ThrowsMessage<DataError>(HasSubstr("Git's SHA-1")));
}

TEST_F(Hub, EachRefusalHasItsOwnWords) {
  repository_.special["/gated/x/resolve/main/f"] = {.status = 403, .headers = {{"X-Error-Code", "GatedRepo"}}};
  repository_.special["/private/x/resolve/main/f"] = {.status = 401};
  repository_.special["/no/hub/resolve/main/f"] = {.status = 200, .headers = {{"ETag", "\"1\""}}};
  const auto refused = [&](const std::string& repo, const std::string& file, const DownloadOptions& options,
                           const char* why) {
    EXPECT_THAT([&] { download(repo, file, options, environment()); }, ThrowsMessage<UsageError>(HasSubstr(why)))
        << repo;
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
  repository_.special["/org/name/resolve/main/config.json"] = {.status = 302,
                                                               .headers = {{"Location", storage.url() + "/blob"},
                                                                           {"X-Repo-Commit", kCommit},
                                                                           {"X-Linked-Etag", '"' + etag + '"'},
                                                                           {"X-Linked-Size", "2"}}};

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
  EXPECT_THAT([&] { get("sub/model.bin", {.local_files_only = true}); },
              ThrowsMessage<UsageError>(HasSubstr("not in the cache")));
  EXPECT_EQ(get("config.json", {.etag_timeout_s = 2, .endpoint = "http://127.0.0.1:9"}),
            path);  // nothing listens there
  EXPECT_THROW(get("sub/model.bin", {.etag_timeout_s = 2, .endpoint = "http://127.0.0.1:9"}), CommError);
}

TEST_F(Hub, ASnapshotHasTheFilesThatThePatternsSelect) {
  const std::string all = snapshot("org/name", {}, environment());
  EXPECT_EQ(contents(all + "/config.json"), "{}");
  EXPECT_EQ(contents(all + "/sub/model.bin").size(), 100'000u);
  const std::string some =
      snapshot("org/name", {.download = {.local_dir = folder_ / "local"}, .allow_patterns = {"*.json"}}, environment());
  EXPECT_EQ(some, folder_ / "local");
  EXPECT_TRUE(fs::exists(folder_ / "local/config.json"));
  EXPECT_FALSE(fs::exists(folder_ / "local/sub/model.bin"));
  EXPECT_TRUE(fs::exists(folder_ / "local/.cache/huggingface/download/config.json.metadata"));
}

TEST_F(Hub, APartOfAFileIsReadWithoutTheRest) {
  repository_.files["long"] = std::string(1000, 'a') + std::string(4'000'000, 'b');

  const FilePart middle = read_part("org/name", "long", 998, 4, {}, environment());
  EXPECT_EQ(middle.bytes, "aabb");
  EXPECT_EQ(middle.file_bytes, 4'001'000u);
  EXPECT_EQ(read_part("org/name", "config.json", 0, 100, {}, environment()).bytes, "{}");
  repository_.resumes = false;
  const FilePart whole = read_part("org/name", "long", 998, 4, {}, environment());
  EXPECT_EQ(whole.bytes, "aabb");
  EXPECT_EQ(whole.file_bytes, 4'001'000u);
  EXPECT_FALSE(fs::exists(repo_folder() + "/blobs"));
  EXPECT_THAT([&] { read_part("org/name", "none", 0, 1, {}, environment()); },
              ThrowsMessage<UsageError>(HasSubstr("no file 'none'")));
  EXPECT_THAT(list_files("org/name", {}, environment()),
              ::testing::UnorderedElementsAre("config.json", "sub/model.bin", "long"));
}

TEST_F(Hub, HeadersOfARepositoryAreReadByRanges) {
  const std::string name(70'000, 'n');  // a header longer than the first part
  const auto one = files::lay_out_safetensors({{name, files::Dtype::kFloat32, {1000, 1000}}}, {}, 8);
  const auto two = files::lay_out_safetensors({{"b", files::Dtype::kBFloat16, {2, 3}}}, {}, 8);
  repository_.files["one.safetensors"] = one.head + std::string(one.file_bytes - one.head.size(), '\1');
  repository_.files["two.safetensors"] = two.head + std::string(two.file_bytes - two.head.size(), '\1');
  EXPECT_THAT([&] { files::open_hub_headers("org/name", {}, environment()); },
              ThrowsMessage<UsageError>(HasSubstr("neither model.safetensors nor")));
  repository_.files["model.safetensors.index.json"] =
      "{\"weight_map\": {\"" + name + "\": \"one.safetensors\", \"b\": \"two.safetensors\"}}";

  const auto source = files::open_hub_headers("org/name", {}, environment());

  EXPECT_EQ(source->names(), (std::vector<std::string>{name, "b"}));
  EXPECT_EQ(source->info("b").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(source->info(name).shape, (std::vector<int64_t>{1000, 1000}));
  char target[64];
  EXPECT_THAT([&] { source->read_all("b", target); }, ThrowsMessage<UsageError>(HasSubstr("only the headers")));
  EXPECT_EQ(files::read_hub_text("org/name", "config.json", {}, environment()), "{}");
  EXPECT_EQ(files::read_hub_text("org/name", "none", {}, environment()), "");
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
