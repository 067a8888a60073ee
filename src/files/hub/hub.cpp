// Requests and answers of the hub's HTTP interface; see hub.h.
#include "hasten/files/hub/hub.h"

#include <fnmatch.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>

#include "files/base/posix_file.h"
#include "files/hub/hub_cache.h"
#include "hasten/core/error.h"
#include "hasten/core/hash.h"
#include "hasten/core/http.h"
#include "hasten/core/number.h"
#include "hasten/core/sentence.h"
#include "hasten/core/strings.h"
#include "hasten/core/value.h"
#include "hasten/files/disk/disk.h"
#include "hasten/files/disk/durable_folder.h"

namespace hasten::hub {
namespace {

namespace fs = std::filesystem;
constexpr Origin kHub{"hub"};

std::optional<std::string> set_text(const Environment& environment, const char* name) {
  return environment.text(name);
}

std::string hub_home(const Environment& environment) {
  if (const auto home = set_text(environment, "HF_HOME")) return *home;
  if (const auto cache = set_text(environment, "XDG_CACHE_HOME")) return *cache + "/huggingface";
  return environment.text("HOME").value_or(".") + "/.cache/huggingface";
}

bool is_on(const Environment& environment, const char* name) {
  const std::string value = core::upper(environment.text(name).value_or(""));
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

/// The options with what the environment adds.
struct Settings {
  DownloadOptions options;
  bool offline = false, symlinks = true;
  double download_timeout_s = 10;
};

std::string token_of(const Environment& environment) {
  if (is_on(environment, "HF_HUB_DISABLE_IMPLICIT_TOKEN")) return "";
  if (const auto token = set_text(environment, "HF_TOKEN")) return *token;
  const std::string path = environment.text("HF_TOKEN_PATH").value_or(hub_home(environment) + "/token");
  if (!fs::is_regular_file(path)) return "";
  std::string token = files::read_small_file(path, 4096);
  token.erase(std::min(token.find_last_not_of(" \n\r\t") + 1, token.size()));
  return token;
}

Settings settings_of(DownloadOptions options, const Environment& environment) {
  static const std::vector<std::string> kTypes{"model", "dataset", "space"};
  if (std::find(kTypes.begin(), kTypes.end(), options.repo_type) == kTypes.end()) {
    throw UsageError(kHub, "repo_type '", options.repo_type, "' is none of ", join(kTypes),
                     guess_end(options.repo_type, kTypes));
  }
  if (options.cache_dir.empty()) options.cache_dir = cache_root(environment);
  if (options.endpoint.empty()) options.endpoint = environment.text("HF_ENDPOINT").value_or("https://huggingface.co");
  while (options.endpoint.ends_with('/')) options.endpoint.pop_back();
  if (options.token.empty()) options.token = token_of(environment);
  if (const auto timeout = environment.real("HF_HUB_ETAG_TIMEOUT")) options.etag_timeout_s = *timeout;
  Settings settings{.options = std::move(options)};
  settings.offline = settings.options.local_files_only || is_on(environment, "HF_HUB_OFFLINE") ||
                     is_on(environment, "TRANSFORMERS_OFFLINE");
  settings.symlinks = !is_on(environment, "HF_HUB_DISABLE_SYMLINKS");
  if (const auto timeout = environment.real("HF_HUB_DOWNLOAD_TIMEOUT")) settings.download_timeout_s = *timeout;
  return settings;
}

void check_names(const std::string& repo, const std::string& file) {
  const bool slashes = std::count(repo.begin(), repo.end(), '/') <= 1;
  const auto valid = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.' || c == '/'; };
  if (repo.empty() || !slashes || repo.front() == '/' || repo.back() == '/' || repo.find("..") != std::string::npos ||
      !std::all_of(repo.begin(), repo.end(), valid)) {
    throw UsageError(
        kHub, "'", repo,
        "' is no repository's name. Expected \"name\" or \"organisation/name\" of letters, digits, '-', '_' and '.'.");
  }
  if (file.empty() || file.front() == '/' || text("/", file, "/").find("/../") != std::string::npos ||
      file.find('\0') != std::string::npos) {
    throw UsageError(kHub, "'", file, "' is no file of a repository. Give its path without a leading '/'.");
  }
}

std::string host_of(const std::string& url) {
  const size_t begin = url.find("://");
  if (begin == std::string::npos) return "";
  return url.substr(0, url.find('/', begin + 3));
}

std::string absolute(const std::string& location, const std::string& base) {
  if (location.find("://") != std::string::npos) return location;
  return location.starts_with('/') ? host_of(base) + location : base.substr(0, base.rfind('/') + 1) + location;
}

std::string kind_prefix(const std::string& repo_type) {
  return repo_type == "model" ? "" : repo_type + "s/";
}

/// The server's facts about a file.
struct FileFacts {
  std::string commit = {}, etag = {}, url = {};
  std::optional<uint64_t> size = {};
};

std::string bare_etag(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  std::erase(etag, '"');
  return etag;
}

class Server {
 public:
  explicit Server(const Settings& settings)
      : settings_(settings),
        asking_(client_options(
            settings, std::chrono::milliseconds(static_cast<int64_t>(settings.options.etag_timeout_s * 1000)))),
        loading_(client_options(settings, {})) {}

  http::Response get(const std::string& url) { return send("GET", url, {}, {}); }

  /// Requests the facts of a file; nothing if the server cannot be reached.
  std::optional<FileFacts> facts(const std::string& repo, const std::string& file, const RepoCache& cache) {
    std::string url = text(settings_.options.endpoint, "/", kind_prefix(settings_.options.repo_type), repo, "/resolve/",
                           http::percent_encoded(settings_.options.revision), "/", http::percent_encoded(file, "/"));
    http::Response answer;
    for (int hop = 0; hop < 8; ++hop) {
      http::Request request{.method = "HEAD", .url = url, .headers = headers_for(url)};
      answer = asking_.send(request);
      const std::string location = answer.header("location");
      // A redirect to another host goes to the storage behind the hub. Its headers have no facts about the repository.
      if (answer.status < 300 || answer.status >= 400 || location.empty() || location.find("://") != std::string::npos)
        break;
      url = absolute(location, url);
    }
    if (answer.status == 0 || answer.status >= 500) {
      unreachable_ = answer.status == 0 ? answer.error : text("it answers ", answer.status);
      return std::nullopt;
    }
    if (answer.status >= 400) refuse(answer, repo, file, cache);
    FileFacts facts{.commit = answer.header("x-repo-commit"), .url = url};
    const std::string linked = answer.header("x-linked-etag"), size = answer.header("x-linked-size");
    facts.etag = bare_etag(linked.empty() ? answer.header("etag") : linked);
    const std::string length = size.empty() ? answer.header("content-length") : size;
    if (!length.empty() && length.find_first_not_of("0123456789") == std::string::npos && length.size() < 19)
      facts.size = core::whole_number<uint64_t>(length).value();
    if (answer.status >= 300) facts.size = size.empty() ? std::nullopt : facts.size;
    if (!is_commit(facts.commit)) {
      throw UsageError(kHub, "'", url,
                       "' is no file of a hub: the answer has no X-Repo-Commit. Check endpoint and HF_ENDPOINT.");
    }
    if (facts.etag.empty() || facts.etag.find('/') != std::string::npos)
      throw UsageError(kHub, "'", url, "' has no ETag. Check endpoint and HF_ENDPOINT.");
    return facts;
  }

  /// Reads a part of a file, and the size of the whole from Content-Range or, without ranges, from Content-Length.
  FilePart part(const std::string& repo, const std::string& file, uint64_t begin, uint64_t count,
                const RepoCache& cache) {
    const std::string url =
        text(settings_.options.endpoint, "/", kind_prefix(settings_.options.repo_type), repo, "/resolve/",
             http::percent_encoded(settings_.options.revision), "/", http::percent_encoded(file, "/"));
    FilePart part;
    std::string received;
    const uint64_t end = begin + count;
    const http::Headers range{{"Range", text("bytes=", begin, "-", end - 1)}};
    bool has_enough = false;  // of a server without ranges, which begins at 0 and goes on to the end
    const http::Response answer = send("GET", url, range, [&](std::string_view bytes) {
      received += bytes;
      has_enough = received.size() > end;
      return !has_enough;
    });
    if (answer.status >= 400) refuse(answer, repo, file, cache);
    const std::string total = answer.header("content-range"), length = answer.header("content-length");
    const bool has_range = !total.empty();
    const std::string size = has_range ? total.substr(std::min(total.find('/') + 1, total.size())) : length;
    if ((!answer.ok() && !has_enough) || size.empty() || size.find_first_not_of("0123456789") != std::string::npos ||
        size.size() > 18) {
      throw CommError(kHub, "range", "'", url, "' cannot be read in parts: ",
                      answer.error.empty() ? text("the answer is ", answer.status, " without a size") : answer.error,
                      ". Check the connection and HF_ENDPOINT.");
    }
    part.file_bytes = core::whole_number<uint64_t>(size).value();
    part.bytes = has_range ? received : received.substr(std::min<uint64_t>(begin, received.size()));
    part.bytes.resize(std::min<uint64_t>(part.bytes.size(), count));
    if (part.bytes.size() < std::min(count, part.file_bytes - std::min(begin, part.file_bytes))) {
      throw CommError(kHub, "range", "'", url, "' broke off after ", part.bytes.size(), " of ", count,
                      " bytes. Try again.");
    }
    return part;
  }

  const std::string& unreachable() const noexcept { return unreachable_; }

  /// Fetches a file to `path`, going on behind what is there already; checks size and hash. Throws: CommError,
  /// DataError.
  void fetch(const FileFacts& facts, const std::string& path) {
    for (int attempt = 0;; ++attempt) {
      const uint64_t have = fs::exists(path) ? fs::file_size(path) : 0;
      if (facts.size && have == *facts.size && have > 0) break;
      if (have > 0 && (!facts.size || have > *facts.size)) fs::remove(path);
      const uint64_t begin = fs::exists(path) ? fs::file_size(path) : 0;
      const http::Response answer = transfer(facts.url, path, begin);
      if (answer.status == 206 || (answer.status == 200 && begin == 0)) {
        if (!facts.size || fs::file_size(path) == *facts.size) break;
      } else if (answer.status == 200 || answer.status == 416) {
        fs::remove(path);  // the server does not resume: again from the beginning
      }
      if (attempt == 4) {
        throw CommError(kHub, "download", "'", facts.url, "' could not be fetched: ",
                        answer.error.empty() ? text("the answer is ", answer.status) : answer.error,
                        ". What has arrived is kept; try again.");
      }
    }
    check(facts, path);
  }

 private:
  static http::ClientOptions client_options(const Settings& settings, std::chrono::milliseconds timeout) {
    http::ClientOptions options{.needed_by = "the hub", .timeout = timeout, .max_body_bytes = 64 << 20};
    options.connect_timeout = std::chrono::milliseconds(static_cast<int64_t>(settings.options.etag_timeout_s * 1000));
    options.stall_timeout =
        std::chrono::seconds(std::max<int64_t>(1, static_cast<int64_t>(settings.download_timeout_s)));
    return options;
  }

  /// The token goes to the hub's own host alone.
  http::Headers headers_for(const std::string& url) const {
    http::Headers headers{{"Accept-Encoding", "identity"}};
    if (!settings_.options.token.empty() && host_of(url) == host_of(settings_.options.endpoint + "/")) {
      headers.emplace_back("Authorization", text("Bearer ", settings_.options.token));
    }
    return headers;
  }

  http::Response send(const std::string& method, std::string url, const http::Headers& more,
                      const std::function<bool(std::string_view)>& on_data) {
    http::Response answer;
    for (int hop = 0; hop < 8; ++hop) {
      http::Request request{.method = method, .url = url, .headers = headers_for(url), .on_data = on_data};
      request.headers.insert(request.headers.end(), more.begin(), more.end());
      answer = loading_.send(request);
      const std::string location = answer.header("location");
      if (answer.status < 300 || answer.status >= 400 || location.empty()) break;
      url = absolute(location, url);
    }
    return answer;
  }

  http::Response transfer(const std::string& url, const std::string& path, uint64_t begin) {
    const auto file = begin == 0 ? files::real_disk().create(path) : files::real_disk().open(path);
    uint64_t at = begin;
    const http::Headers range = begin == 0 ? http::Headers() : http::Headers{{"Range", text("bytes=", begin, "-")}};
    const http::Response answer = send("GET", url, range, [&](std::string_view bytes) {
      file->write_at(at, bytes.data(), bytes.size());
      at += bytes.size();
      return true;
    });
    file->sync();
    file->close();
    return answer;
  }

  static void check(const FileFacts& facts, const std::string& path) {
    const files::PosixFile file = files::PosixFile::open_to_read(path);
    const uint64_t size = file.size();
    const auto bad = [&](const std::string& what) {
      fs::remove(path);
      throw DataError(kHub, path, "'", facts.url, "' arrived with ", what,
                      ". It is removed; try again, or tell the repository's owner.");
    };
    if (facts.size && size != *facts.size) bad(text(size, " bytes, expected ", *facts.size));
    const bool hex = facts.etag.find_first_not_of("0123456789abcdef") == std::string::npos;
    const bool sha256 = hex && facts.etag.size() == 64, sha1 = hex && facts.etag.size() == 40;
    if (!sha256 && !sha1) return;
    core::Digest digest(sha256 ? core::Digest::Kind::kSha256 : core::Digest::Kind::kSha1);
    if (sha1) digest.update(text("blob ", size) + std::string(1, '\0'));
    std::string buffer;
    for (uint64_t at = 0; at < size; at += buffer.size()) {
      buffer.resize(std::min<uint64_t>(size - at, 8 << 20));
      file.read_at(at, buffer.data(), buffer.size());
      digest.update(buffer);
    }
    const std::string found = digest.hex();
    if (found != facts.etag) bad(text(sha256 ? "SHA-256 " : "Git's SHA-1 ", found, ", expected ", facts.etag));
  }

  [[noreturn]] void refuse(const http::Response& answer, const std::string& repo, const std::string& file,
                           const RepoCache& cache) {
    const std::string code = answer.header("x-error-code"), commit = answer.header("x-repo-commit");
    if (code == "GatedRepo" || answer.status == 403) {
      throw UsageError(kHub, "the repository '", repo, "' is gated, and ",
                       settings_.options.token.empty() ? "no token is given" : "this token has no access", " (",
                       answer.status, "). Ask for access on its page, and set HF_TOKEN.");
    }
    if (code == "RevisionNotFound")
      throw UsageError(kHub, "the repository '", repo, "' has no revision '", settings_.options.revision,
                       "'. Correct the revision.");
    if (code == "EntryNotFound") {
      if (is_commit(commit)) cache.remember_missing(commit, file);
      throw UsageError(kHub, "the repository '", repo, "' has no file '", file, "' in revision '",
                       settings_.options.revision, "'. Correct the name.");
    }
    if (code == "RepoNotFound" || answer.status == 404 || answer.status == 401) {
      throw UsageError(kHub, "there is no repository '", repo, "' of type ", settings_.options.repo_type, " at ",
                       settings_.options.endpoint, ", or it is private (", answer.status,
                       "). Correct the name, or set HF_TOKEN.");
    }
    throw UsageError(kHub, "'", repo, "' cannot be read: the server answers ", answer.status, ".");
  }

  const Settings& settings_;
  http::Client asking_, loading_;
  std::string unreachable_;
};

[[noreturn]] void not_cached(const Settings& settings, const std::string& repo, const std::string& file,
                             const std::string& why) {
  const std::string words = text("'", file, "' of '", repo, "' (", settings.options.revision, ") is not in the cache '",
                                 settings.options.cache_dir, "', and ", why);
  if (settings.offline) throw UsageError(kHub, words, ". Download it once with a connection.");
  throw CommError(kHub, "download", words, ". Check the connection and HF_ENDPOINT.");
}

/// Returns the path of a file of a known revision in the cache, "" if it is not there.
std::string cached(const RepoCache& cache, const std::string& revision, const std::string& file) {
  const auto commit = cache.commit_of(revision);
  if (!commit || !fs::exists(cache.pointer(*commit, file))) return "";
  return cache.pointer(*commit, file);
}

std::string into_local_dir(Server& server, const FileFacts& facts, const std::string& file,
                           const DownloadOptions& options) {
  const fs::path target = fs::path(options.local_dir) / file;
  const fs::path side = fs::path(options.local_dir) / ".cache/huggingface/download" / file;
  const std::string metadata = side.string() + ".metadata", partial = side.string() + "." + facts.etag + ".incomplete";
  fs::create_directories(side.parent_path());
  fs::create_directories(target.parent_path());
  const LockFile lock(side.string() + ".lock");
  if (!options.force_download && fs::exists(target) && fs::exists(metadata)) {
    const std::string known = files::read_small_file(metadata, 4096);
    if (known.find(text("\n", facts.etag, "\n")) != std::string::npos) return target.string();
  }
  server.fetch(facts, partial);
  files::real_disk().rename(partial, target.string(), files::Rename::kReplace);
  const auto now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  files::write_file(files::real_disk(), metadata, text(facts.commit, "\n", facts.etag, "\n", std::fixed, now, "\n"));
  return target.string();
}

std::string download_with(const std::string& repo, std::string file, const Settings& settings) {
  const DownloadOptions& options = settings.options;
  if (!options.subfolder.empty()) file = options.subfolder + "/" + file;
  check_names(repo, file);
  const RepoCache cache(options.cache_dir, repo, options.repo_type);
  const bool to_cache = options.local_dir.empty();
  if (to_cache && is_commit(options.revision) && !options.force_download) {
    if (const std::string path = cached(cache, options.revision, file); !path.empty()) return path;
  }
  if (settings.offline) {
    const std::string path =
        to_cache ? cached(cache, options.revision, file) : (fs::path(options.local_dir) / file).string();
    if (path.empty() || !fs::exists(path)) not_cached(settings, repo, file, "downloading is switched off");
    return path;
  }
  Server server(settings);
  const auto facts = server.facts(repo, file, cache);
  if (!facts) {
    const std::string path = options.force_download ? "" : cached(cache, options.revision, file);
    if (path.empty())
      not_cached(settings, repo, file, text("'", options.endpoint, "' cannot be reached (", server.unreachable(), ")"));
    return path;
  }
  if (!to_cache) return into_local_dir(server, *facts, file, options);
  cache.make_folders();
  cache.remember_ref(options.revision, facts->commit);
  const std::string pointer = cache.pointer(facts->commit, file), blob = cache.blob(facts->etag);
  if (!options.force_download && fs::exists(pointer)) return pointer;
  const LockFile lock(cache.lock(facts->etag));
  if (options.force_download || !fs::exists(blob)) {
    const std::string partial = blob + ".incomplete";
    if (options.force_download) fs::remove(partial);
    server.fetch(*facts, partial);
    files::real_disk().rename(partial, blob, files::Rename::kReplace);
  }
  cache.point(facts->commit, file, facts->etag, settings.symlinks);
  return pointer;
}

bool matches(const std::string& file, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return fnmatch((pattern.ends_with('/') ? pattern + "*" : pattern).c_str(), file.c_str(), 0) == 0;
  });
}

core::Value parsed(const http::Response& answer, const std::string& url, const std::string& repo) {
  if (answer.status == 0)
    throw CommError(kHub, "snapshot", "'", url, "' cannot be reached (", answer.error,
                    "). Check the connection and HF_ENDPOINT.");
  if (answer.status >= 400)
    throw UsageError(kHub, "the repository '", repo, "' or its revision is not there, or it is private (",
                     answer.status, "). Correct the names, or set HF_TOKEN.");
  return core::Value::parse_json(answer.body, url);
}

/// Returns the address in a Link header with rel="next", "" if there is none.
std::string next_page(const std::string& link) {
  const size_t end = link.find(">; rel=\"next\"");
  const size_t begin = link.rfind('<', end);
  return end == std::string::npos || begin == std::string::npos ? "" : link.substr(begin + 1, end - begin - 1);
}

std::vector<std::string> files_of(Server& server, const std::string& base, const std::string& commit,
                                  const std::string& repo) {
  std::vector<std::string> files;
  std::string url = text(base, "/tree/", commit, "?recursive=true&expand=false");
  while (!url.empty()) {
    const http::Response answer = server.get(url);
    const core::Value entries = parsed(answer, url, repo);
    for (const core::Value& entry : entries.as_list()) {
      if (entry.at("type").as_string() == "file") files.push_back(entry.at("path").as_string());
    }
    url = next_page(answer.header("link"));
  }
  return files;
}

void download_all(const std::string& repo, const std::vector<std::string>& files, const Settings& settings,
                  size_t num_threads) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto loop = [&] {
    for (size_t i = next++; i < files.size(); i = next++) {
      try {
        download_with(repo, files[i], settings);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (failure == nullptr) failure = std::current_exception();
        next = files.size();
      }
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < std::min(std::max<size_t>(num_threads, 1), files.size()); ++i) threads.emplace_back(loop);
  loop();
  for (std::thread& thread : threads) thread.join();
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace

std::string cache_root(const Environment& environment) {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const auto root = environment.text(name)) return *root;
  }
  return hub_home(environment) + "/hub";
}

std::string download(const std::string& repo, const std::string& file, const DownloadOptions& options,
                     const Environment& environment) {
  return download_with(repo, file, settings_of(options, environment));
}

std::vector<std::string> list_files(const std::string& repo, const DownloadOptions& options,
                                    const Environment& environment) {
  check_names(repo, "x");
  const Settings settings = settings_of(options, environment);
  if (settings.offline) not_cached(settings, repo, "the list of files", "downloading is switched off");
  Server server(settings);
  return files_of(server, text(settings.options.endpoint, "/api/", settings.options.repo_type, "s/", repo),
                  http::percent_encoded(settings.options.revision), repo);
}

FilePart read_part(const std::string& repo, const std::string& file, uint64_t begin, uint64_t count,
                   const DownloadOptions& options, const Environment& environment) {
  check_names(repo, file);
  const Settings settings = settings_of(options, environment);
  if (settings.offline) not_cached(settings, repo, file, "downloading is switched off");
  Server server(settings);
  return server.part(repo, file, begin, count, RepoCache(settings.options.cache_dir, repo, settings.options.repo_type));
}

std::string snapshot(const std::string& repo, const SnapshotOptions& options, const Environment& environment) {
  check_names(repo, "x");
  Settings settings = settings_of(options.download, environment);
  const RepoCache cache(settings.options.cache_dir, repo, settings.options.repo_type);
  const auto folder_of = [&](const std::string& commit) {
    return settings.options.local_dir.empty() ? cache.snapshot(commit) : settings.options.local_dir;
  };
  const auto from_cache = [&](const std::string& why) {
    const auto commit = cache.commit_of(settings.options.revision);
    if (!commit || !fs::is_directory(folder_of(*commit))) not_cached(settings, repo, "the snapshot", why);
    return folder_of(*commit);
  };
  if (settings.offline) return from_cache("downloading is switched off");
  Server server(settings);
  const std::string base = text(settings.options.endpoint, "/api/", settings.options.repo_type, "s/", repo);
  const std::string url = text(base, "/revision/", http::percent_encoded(settings.options.revision));
  const http::Response answer = server.get(url);
  if (answer.status == 0 || answer.status >= 500)
    return from_cache(text("'", settings.options.endpoint, "' cannot be reached (", answer.error, ")"));
  const std::string commit = parsed(answer, url, repo).at("sha").as_string();
  std::vector<std::string> files = files_of(server, base, commit, repo);
  std::erase_if(files, [&](const std::string& file) {
    return (!options.allow_patterns.empty() && !matches(file, options.allow_patterns)) ||
           matches(file, options.ignore_patterns);
  });
  cache.make_folders();
  cache.remember_ref(settings.options.revision, commit);
  settings.options.revision = commit;
  fs::create_directories(folder_of(commit));
  download_all(repo, files, settings, options.num_threads);
  return folder_of(commit);
}

}  // namespace hasten::hub
