// Finding and making the secret; see rendezvous_secret.h.
#include "launch/rendezvous/rendezvous_secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"

namespace hasten::launcher {
namespace {

constexpr size_t kShortest = 16;
constexpr size_t kLongest = 4096;

[[noreturn]] void refuse_file(const std::string& path, const std::string& why) {
  throw UsageError({"launch"}, "the rendezvous' secret cannot be taken from '", path, "': ", why,
                   ". Make it a file of at least ", count_text(kShortest, "character"),
                   " that only you can read (chmod 600).");
}

// The file's text without the newline at its end; nothing if it is not there.
std::optional<std::string> read_secret(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0 && errno == ENOENT) return std::nullopt;
  if (file < 0) refuse_file(path, std::strerror(errno));
  struct stat facts = {};
  fstat(file, &facts);
  std::string secret(kLongest, '\0');
  const ssize_t size = read(file, secret.data(), secret.size());
  close(file);
  if ((facts.st_mode & (S_IROTH | S_IWOTH | S_IWGRP)) != 0) refuse_file(path, "others can read or change it");
  secret.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  while (secret.ends_with('\n')) secret.pop_back();
  return secret;
}

// A folder that is this user's alone.
std::string private_folder(const Environment& environment) {
  const std::string path = text(environment.text("TMPDIR").value_or("/tmp"), "/hasten_", geteuid());
  mkdir(path.c_str(), 0700);
  struct stat facts = {};
  const bool mine = lstat(path.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode) && facts.st_uid == geteuid() &&
                    (facts.st_mode & 077) == 0;
  if (!mine) {
    throw UsageError({"launch"}, "'", path, "' must be a folder that only you can read, for the rendezvous' secret. ",
                     "Remove it, set TMPDIR, or give a secret in HASTEN_RDZV_SECRET_FILE.");
  }
  return path;
}

// The launcher that links its file first makes the secret, and all others read it.
std::string make_or_read(const std::string& path) {
  if (const auto secret = read_secret(path)) return *secret;
  const std::string own = text(path, ".", getpid());
  const int file = open(own.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) refuse_file(own, std::strerror(errno));
  const std::string secret = hex(random_bytes());
  const bool written = write(file, secret.data(), secret.size()) == static_cast<ssize_t>(secret.size());
  close(file);
  const bool linked = written && (link(own.c_str(), path.c_str()) == 0 || errno == EEXIST);
  unlink(own.c_str());
  const auto result = linked ? read_secret(path) : std::nullopt;
  if (!result) refuse_file(path, "it cannot be written");
  return *result;
}

}  // namespace

RunSecret::RunSecret(const Environment& environment, const std::string& run_id, int port, bool one_machine) {
  std::string secret, from = "HASTEN_RDZV_SECRET";
  if (const auto file = environment.text("HASTEN_RDZV_SECRET_FILE")) {
    from = *file;
    const auto read = read_secret(from);
    if (!read) refuse_file(from, "there is no such file");
    secret = *read;
  } else if (const auto given = environment.text("HASTEN_RDZV_SECRET")) {
    secret = *given;
  } else if (one_machine) {
    const std::string name = hex(hmac("run", text(port, " ", run_id))).substr(0, 16);
    made_file_ = text(private_folder(environment), "/", name, ".secret");
    secret = make_or_read(made_file_);
  } else {
    throw UsageError({"launch"},
                     "nodes on several machines need a secret that they share, so that no stranger can "
                     "join. Write one into a file that only you can read, the same on all of them, and set "
                     "HASTEN_RDZV_SECRET_FILE to it: (umask 077; openssl rand -hex 32 > secret).");
  }
  if (secret.size() < kShortest) {
    throw UsageError({"launch"}, "the rendezvous' secret (", from, ") has ", count_text(secret.size(), "character"),
                     "; expected at least ", kShortest, ". A good one: openssl rand -hex 32.");
  }
  run_key_ = hmac(secret, "hasten rendezvous 1 " + run_id);
}

void RunSecret::remove() const {
  if (made_file_.empty()) return;
  unlink(made_file_.c_str());
  rmdir(made_file_.substr(0, made_file_.rfind('/')).c_str());  // if it was the last one
}

}  // namespace hasten::launcher
