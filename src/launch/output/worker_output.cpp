// See worker_output.h.
#include "launch/output/worker_output.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "hasten/core/text.h"

namespace hasten::launcher {
namespace {

constexpr size_t kReadBytes = 64 * 1024;
constexpr int kReadsAtTheEnd = 64;  // a daemon that left the group may write for ever
// How long an unfinished line may be held back from a terminal that several ranks share.
constexpr auto kUnfinishedLine = std::chrono::milliseconds(200);

void close_if_open(int& descriptor) {
  if (descriptor >= 0) close(descriptor);
  descriptor = -1;
}

bool same_file(int a, int b) {
  struct stat of_a = {}, of_b = {};
  return fstat(a, &of_a) == 0 && fstat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

struct Ends {
  int reading = -1;
  int writing = -1;
};

// A terminal that changes no byte on its way: the launcher's own does what terminals do.
Ends open_pty() {
  Ends ends;
  ends.reading = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  char name[64];
  if (ends.reading >= 0 && grantpt(ends.reading) == 0 && unlockpt(ends.reading) == 0 &&
      ptsname_r(ends.reading, name, sizeof name) == 0) {
    ends.writing = ::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
  }
  termios settings = {};
  if (ends.writing >= 0 && tcgetattr(ends.writing, &settings) == 0) {
    cfmakeraw(&settings);
    tcsetattr(ends.writing, TCSANOW, &settings);
    return ends;
  }
  close_if_open(ends.reading);
  close_if_open(ends.writing);
  return ends;
}

Ends open_pipe() {
  int ends[2];
  return pipe2(ends, O_CLOEXEC) == 0 ? Ends{ends[0], ends[1]} : Ends{};
}

}  // namespace

WorkerOutput::WorkerOutput(const OutputPlan& plan, Options options)
    : options_(std::move(options)), progress_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  open(plan.out, STDOUT_FILENO);
  open(plan.err, STDERR_FILENO);
  open_writers();
  resize();
}

void WorkerOutput::open(const StreamPlan& plan, int target) {
  const bool terminal = isatty(target) == 1;
  const bool is_error = target == STDERR_FILENO;
  const bool passes_through = plan.shown && plan.file.empty() && plan.prefix.empty();
  if (passes_through && !terminal && !is_error) return;
  Stream stream{.target = target, .shown = plan.shown, .is_error = is_error};
  stream.prefixer = LinePrefixer(plan.prefix);
  stream.filter = LineFilter(plan.words, plan.words_prefix);
  if (!plan.shown && plan.file.empty() && !is_error) {
    stream.worker = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  } else {
    open_tap(stream, terminal && plan.shown && plan.file.empty());
  }
  if (!plan.file.empty()) stream.file = LogFile(plan.file, options_.notice);
  if (!plan.words_file.empty()) stream.picked_file = LogFile(plan.words_file, options_.notice);
  streams_.push_back(std::move(stream));
}

void WorkerOutput::open_tap(Stream& stream, bool terminal) {
  Ends ends;
  if (terminal) ends = open_pty();
  if (ends.reading < 0) ends = open_pipe();  // a container without /dev/pts, too
  if (ends.reading < 0) {
    error_ = errno;
    return;
  }
  fcntl(ends.reading, F_SETFL, fcntl(ends.reading, F_GETFL) | O_NONBLOCK);
  stream.reading = ends.reading;
  stream.worker = ends.writing;
}

// If both streams end in one terminal or file, they share a writer, so that they stay in order.
void WorkerOutput::open_writers() {
  const bool one_place = same_file(STDOUT_FILENO, STDERR_FILENO);
  for (Stream& stream : streams_) {
    if (!stream.shown) continue;
    if (writers_.empty() || !one_place) {
      const auto& turns = stream.is_error && !one_place ? options_.turns.err : options_.turns.out;
      const OutputWriter::Options options{.destination = stream.target,
                                          .progress = progress_,
                                          .spill_folder = options_.spill_folder,
                                          .turns = turns.get()};
      writers_.push_back(std::make_unique<OutputWriter>(options));
    }
    stream.writer = writers_.back().get();
  }
}

void WorkerOutput::connect_worker() {
  for (Stream& stream : streams_) {
    dup2(stream.worker, stream.target);
    close_if_open(stream.worker);
    close_if_open(stream.reading);
    stream.file.close();
    stream.picked_file.close();
  }
  close_if_open(progress_);
}

void WorkerOutput::close_worker_ends() {
  for (Stream& stream : streams_) close_if_open(stream.worker);
}

std::vector<int> WorkerOutput::descriptors() const {
  std::vector<int> result = {progress_};
  for (const Stream& stream : streams_) {
    for (const int descriptor : {stream.reading, stream.file.descriptor(), stream.picked_file.descriptor(),
                                 stream.shown ? stream.target : -1}) {
      if (descriptor >= 0) result.push_back(descriptor);
    }
  }
  return result;
}

void WorkerOutput::add_sources(std::vector<pollfd>& sources) const {
  sources.push_back({progress_, POLLIN, 0});
  for (const Stream& stream : streams_) {
    if (stream.reading >= 0 && stream.held.empty()) sources.push_back({stream.reading, POLLIN, 0});
  }
}

std::optional<WorkerOutput::Clock::time_point> WorkerOutput::deadline() const {
  std::optional<Clock::time_point> first;
  for (const Stream& stream : streams_) {
    if (stream.prefixer.waiting() && stream.held.empty())
      first = std::min(first.value_or(stream.flush_at), stream.flush_at);
  }
  return first;
}

void WorkerOutput::pump() {
  retry_held();
  for (Stream& stream : streams_) {
    if (stream.reading >= 0 && stream.held.empty() && read_from(stream) == Read::kEnd) end(stream);
    if (stream.held.empty() && stream.prefixer.waiting() && Clock::now() >= stream.flush_at) {
      show(stream, stream.prefixer.flush());
    }
  }
}

bool WorkerOutput::finish() {
  retry_held();
  for (Stream& stream : streams_) {
    for (int i = 0; i < kReadsAtTheEnd && stream.reading >= 0; ++i) {
      if (!stream.held.empty()) return false;
      if (read_from(stream) != Read::kBytes) break;
    }
    if (!stream.held.empty()) return false;
    if (stream.reading >= 0) end(stream);
  }
  return std::all_of(streams_.begin(), streams_.end(), [](const Stream& s) { return s.held.empty(); });
}

bool WorkerOutput::written() const {
  return std::all_of(writers_.begin(), writers_.end(), [](const auto& writer) { return writer->idle(); });
}

WorkerOutput::Read WorkerOutput::read_from(Stream& stream) {
  char buffer[kReadBytes];
  const ssize_t size = read(stream.reading, buffer, sizeof buffer);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return Read::kNothing;
  if (size <= 0) return Read::kEnd;  // EIO: no process holds the other side of the pty any more
  const std::string_view bytes(buffer, static_cast<size_t>(size));
  if (stream.is_error) tail_.add(bytes);
  stream.file.write(bytes, options_.notice);
  stream.picked_file.write(stream.filter.add(bytes), options_.notice);
  if (stream.shown) {
    const std::string lines = stream.prefixer.add(bytes);
    if (stream.prefixer.is_new()) stream.flush_at = Clock::now() + kUnfinishedLine;
    show(stream, lines);
  }
  return Read::kBytes;
}

void WorkerOutput::end(Stream& stream) {
  stream.picked_file.write(stream.filter.finish(), options_.notice);
  show(stream, stream.prefixer.finish());
  close_if_open(stream.reading);
}

void WorkerOutput::show(Stream& stream, std::string bytes) {
  if (stream.writer == nullptr || bytes.empty()) return;
  const size_t taken = stream.writer->push(bytes);
  stream.held = bytes.substr(taken);
}

void WorkerOutput::retry_held() {
  eventfd_t ignored = 0;
  if (eventfd_read(progress_, &ignored) == 0) last_progress_ = Clock::now();
  for (Stream& stream : streams_) {
    if (!stream.held.empty()) show(stream, std::exchange(stream.held, {}));
  }
}

void WorkerOutput::resize() const {
  for (const Stream& stream : streams_) {
    winsize size = {};
    if (stream.reading >= 0 && ioctl(stream.target, TIOCGWINSZ, &size) == 0) {
      ioctl(stream.reading, TIOCSWINSZ, &size);
    }
  }
}

}  // namespace hasten::launcher
