// A folder of a file server that stops to answer: a file system of FUSE, served by a thread of the process itself.
//
// It has one regular file under every name. Only the thread that makes the folder, and threads that it starts later,
// see it. It vanishes with the process.
#pragma once

#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

namespace hasten::testing {

class SilentFiles {
 public:
  /// The call that does not return, by the last request that is answered.
  enum class Silent : uint32_t { kOpen = FUSE_LOOKUP, kWrite = FUSE_OPEN };

  /// Mounts the folder, which is there. Returns 0 or errno.
  static int mount_at(const std::string& folder, Silent silent) {
    const int device = device_at(folder);
    if (device < 0) return errno;
    std::thread([device, silent] { serve(device, static_cast<uint32_t>(silent)); }).detach();
    return 0;
  }

  /// Returns why this machine lets a test have no such folder, as errno; 0 if it does.
  static int why_not(const std::string& folder) {
    const pid_t child = fork();
    if (child == 0) _exit(device_at(folder) < 0 ? errno : 0);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
  }

 private:
  // The server's end of the folder that it mounts; -1 and errno.
  static int device_at(const std::string& folder) {
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return -1;
    const int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (device < 0) return -1;
    const std::string options = "fd=" + std::to_string(device) + ",rootmode=40000,user_id=0,group_id=0";
    if (mount("silent_files", folder.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) == 0) return device;
    const int reason = errno;
    close(device);
    errno = reason;
    return -1;
  }

  static constexpr uint64_t kFolder = FUSE_ROOT_ID, kFile = 2, kForLong = 3600;

  static fuse_attr attributes_of(uint64_t node) {
    fuse_attr attributes = {};
    attributes.ino = node;
    attributes.mode = node == kFolder ? S_IFDIR | 0755 : S_IFREG | 0644;
    attributes.nlink = 1;
    attributes.blksize = 4096;
    return attributes;
  }

  // A request that was read holds its process, even a killed one, until this descriptor is closed. So none is read that
  // gets no answer.
  static void serve(int device, uint32_t last) {
    std::array<char, (1 << 17) + 4096> request;
    while (true) {
      const ssize_t size = read(device, request.data(), request.size());
      if (size < 0 && (errno == EINTR || errno == ENOENT)) continue;
      if (size < static_cast<ssize_t>(sizeof(fuse_in_header))) return;
      fuse_in_header header;
      std::memcpy(&header, request.data(), sizeof header);
      answer(device, header, request.data() + sizeof header);
      if (header.opcode == last) return;
    }
  }

  static void answer(int device, const fuse_in_header& header, const char* body) {
    switch (header.opcode) {
      case FUSE_INIT: {
        fuse_init_in asked;
        std::memcpy(&asked, body, offsetof(fuse_init_in, flags));
        fuse_init_out init = {};
        init.major = FUSE_KERNEL_VERSION;
        init.minor = std::min<uint32_t>(asked.minor, FUSE_KERNEL_MINOR_VERSION);
        init.max_write = 1 << 17;
        init.time_gran = 1;
        return reply(device, header, &init, sizeof init);
      }
      case FUSE_LOOKUP: {
        fuse_entry_out entry = {};
        entry.nodeid = kFile;
        entry.entry_valid = entry.attr_valid = kForLong;
        entry.attr = attributes_of(kFile);
        return reply(device, header, &entry, sizeof entry);
      }
      case FUSE_GETATTR: {
        fuse_attr_out attributes = {};
        attributes.attr_valid = kForLong;
        attributes.attr = attributes_of(header.nodeid);
        return reply(device, header, &attributes, sizeof attributes);
      }
      case FUSE_OPEN: {
        fuse_open_out opened = {};
        opened.fh = 1;
        // A write waits for the server. The end of the process, which closes the file, does not.
        opened.open_flags = FOPEN_DIRECT_IO | FOPEN_NOFLUSH;
        return reply(device, header, &opened, sizeof opened);
      }
      case FUSE_FORGET:
      case FUSE_BATCH_FORGET:
      case FUSE_INTERRUPT:
        return;  // these have no answer
      default: {
        fuse_out_header refusal = {sizeof refusal, -ENOSYS, header.unique};
        (void)!::write(device, &refusal, sizeof refusal);
      }
    }
  }

  static void reply(int device, const fuse_in_header& header, const void* body, size_t size) {
    std::array<char, 256> bytes;
    const fuse_out_header head = {static_cast<uint32_t>(sizeof head + size), 0, header.unique};
    std::memcpy(bytes.data(), &head, sizeof head);
    std::memcpy(bytes.data() + sizeof head, body, size);
    (void)!::write(device, bytes.data(), sizeof head + size);
  }
};

}  // namespace hasten::testing
