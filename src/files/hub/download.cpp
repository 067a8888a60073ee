// See download.h.
#include "files/hub/download.h"

#include <chrono>
#include <fstream>

#include "hasten/core/error.h"
#include "hasten/core/hash.h"
#include "hasten/core/http.h"
#include "hasten/core/strings.h"
#include "hasten/files/disk/mapped_file.h"

namespace hasten::files {
namespace {

void check_hash(core::Digest& digest, const std::string& expected, const std::string& source) {
  const auto found = digest.hex();
  if (expected.empty() || found == expected) return;
  throw DataError(Origin{"files"}, source, source, " has the SHA-256 ", found, ", expected ", expected,
                  ". Fetch another copy, or correct FetchOptions::sha256.");
}

}  // namespace

bool is_address(const std::string& source) {
  return source.starts_with("http://") || source.starts_with("https://");
}

std::string wanted_sha256(const std::string& digits, const std::string& needed_by) {
  const std::string sha256 = core::lower(digits);
  if (!sha256.empty() && (sha256.size() != 64 || sha256.find_first_not_of("0123456789abcdef") != std::string::npos)) {
    throw UsageError(Origin{"files"}, "sha256 '", digits, "' of ", needed_by, "; expected 64 hexadecimal digits.");
  }
  return sha256;
}

void download(const std::string& source, const std::filesystem::path& path, const std::string& sha256,
              const std::string& needed_by) {
  http::Client client({.needed_by = needed_by,
                       .timeout = std::chrono::milliseconds(0),
                       .stall_timeout = std::chrono::seconds(60),
                       .follow_redirects = true});
  std::ofstream file(path, std::ios::binary);
  core::Digest digest(core::Digest::Kind::kSha256);
  const auto response = client.send({.url = source, .on_data = [&](std::string_view part) {
                                       file.write(part.data(), static_cast<std::streamsize>(part.size()));
                                       digest.update(part);
                                       return file.good();
                                     }});
  file.close();
  if (!response.ok() && response.status != 0) {
    throw DataError(Origin{"files"}, source, source, ": the server answered with status ", response.status,
                    ". Check the address.");
  }
  if (!response.ok())
    throw CommError(Origin{"files"}, needed_by, source, ": ", response.error,
                    ". Check the network, or name a local file.");
  if (!file)
    throw DataError(Origin{"files"}, path.string(), "cannot write ", path.string(),
                    "; free space, or name another folder.");
  check_hash(digest, sha256, source);
}

void check_file_hash(const std::filesystem::path& path, const std::string& sha256) {
  core::Digest digest(core::Digest::Kind::kSha256);
  digest.update(MappedFile::open(path.string())->bytes());
  check_hash(digest, sha256, path.string());
}

}  // namespace hasten::files
