// Recorder: writes a rank's page, and Call and PhaseScope, which record a call and a phase.
//
// No lock and no system call but a rare one for a new text. So recording goes on in every thread, and costs less than
// 0.1 us a call. The end of a call on a device takes a lock. A null recorder records nothing, which is what ranks as
// threads of one process have by default.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "hasten/core/memory_file.h"
#include "hasten/flight/page.h"

namespace hasten::flight {

/// A rank's place in its run.
struct PageIdentity {
  std::string run = {};     ///< equal on all ranks of the run: "127.0.0.1:29500 attempt 0"
  std::string run_id = {};  ///< for users; may be empty
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int restart_count = 0;
};

/// Returns PageIdentity::run of the `process`-th Process that a program makes: equal on all ranks of an attempt.
std::string run_name(const std::string& address, int port, int attempt, int process = 0);

/// Writes the head of a page whose rank has not taken it: this process is to become it. For launchers.
void announce(const MemoryFile& file, const PageIdentity& identity);

/// Nanoseconds of CLOCK_MONOTONIC, which is one clock for the processes of a host.
int64_t now_ns() noexcept;

/// Words that make a label: "all_reduce(sum) of float32". Literals; null parts are left out.
struct Label {
  const char* operation = nullptr;
  const char* reduction = nullptr;
  const char* dtype = nullptr;
};

struct CallFacts {
  CallKind kind = CallKind::kCollective;
  int group = -1;  ///< the place that Recorder::open_group gave
  Label label = {};
  SizesRule rule = SizesRule::kEqual;
  std::span<const int64_t> sizes = {};  ///< the first kNumSizes are written down
  int root = -1;
  int peer = -1;
  int tag = -1;
  const char* file = "";  ///< the caller's, a literal
  uint32_t line = 0;
  const char* purpose = nullptr;  ///< a literal
  int64_t purpose_number = -1;
};

/// The kind of a value that is not finite.
enum class BadValue : uint32_t { kNone, kLoss, kGradient, kNorm };

/// The treatment of values that are not finite.
struct ValueChecks {
  /// Gradients of each n-th step are looked at before their exchange. 0: of none.
  int64_t gradients_every = 0;
  /// The rank throws, which ends the run.
  bool stop = false;
};

/// A profile that another process asks for (hasten trace).
struct TraceWish {
  uint32_t number = 0;
  int64_t steps = 1;
  bool with_shapes = false;
  std::string folder = {};
};

/// A record's place in the ring.
struct Ticket {
  uint64_t sequence = 0;  ///< 0: nothing is recorded
};

class Recorder {
 public:
  /// Writes to `file`, a memory file of kPageBytes, and makes one where it is null.
  /// Throws: std::system_error where the system refuses memory files; std::runtime_error for a file of another size.
  explicit Recorder(const PageIdentity& identity, int file = -1);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  const PageIdentity& identity() const noexcept { return identity_; }
  Page& page() const noexcept { return *page_; }
  int descriptor() const noexcept { return file_.descriptor(); }

  /// Finds a place for a group whose ranks are about to meet. Groups of one name differ by the order of their making.
  /// Returns -1 if all places are taken.
  int open_group(const std::string& name, int rank, int size, int64_t timeout_ms);
  void close_group(int group) noexcept;

  /// Writes a record of a call that begins, in which the caller waits (of all functions here: -1 as group is fine).
  Ticket post(const CallFacts& facts) noexcept;
  /// The caller goes on with other work while the call is under way.
  void go_on(Ticket ticket) noexcept;
  /// The caller waits for the call's end.
  void wait(Ticket ticket) noexcept;
  void end(Ticket ticket) noexcept;
  /// Ends a call that a device has done, in which no thread of the host has waited. `took_ns` is its time there; 0 if
  /// that is unknown. Of a step's calls the longest counts as a wait.
  void end_on_device(Ticket ticket, int64_t took_ns) noexcept;

  /// Sets the phase and returns the one before, by numbers of phase_number. 0: none.
  uint32_t enter_phase(uint32_t phase) noexcept;
  /// The number of a phase. `name` is a literal.
  uint32_t phase_number(const char* name) noexcept;

  /// A sign of progress from code that calls nothing of hasten's for long.
  void alive() noexcept;
  /// A step of the optimizer has ended, over this many samples of this rank.
  void step(int64_t samples) noexcept;
  void set_epoch(int64_t epoch) noexcept;
  void set_batch(int64_t batch) noexcept;
  void set_loss(double loss) noexcept;
  /// The first value that is not finite: "loss", "gradient of fc.weight". Later ones are not written down.
  void set_bad(BadValue kind, const std::string& name) noexcept;
  /// Values of this kind are finite again.
  void clear_bad(BadValue kind) noexcept;

  /// Set by the watch, and taken back at its end: words on the ranks of this host that have ended.
  void set_words_of_ended(std::function<std::string()> words);
  /// Returns them, for the error of a call that was cut: "rank 2 has ended in order". "" if none is known to have ended.
  std::string words_of_ended() const;

  /// Set by the Accelerator for this process's other parts.
  void set_value_checks(const ValueChecks& checks) noexcept;
  bool stops_on_bad_values() const noexcept { return stops_.load(kRelaxed); }
  /// Returns true in a step whose gradients are looked at.
  bool checks_gradients() const noexcept;

  /// Returns a wish that came since the last call. Cheap, for a look each step.
  std::optional<TraceWish> new_wish() noexcept;
  void answer_wish(WishState state, const std::string& words = "") noexcept;
  void set_state(PageState state) noexcept;

 private:
  template <class Make>
  uint16_t text_of(uint64_t key, const Make& make) noexcept;
  uint16_t write_text(const std::string& text) noexcept;
  uint16_t label_of(const Label& label) noexcept;
  uint16_t site_of(const char* file, uint32_t line) noexcept;
  uint16_t literal_of(const char* literal) noexcept;
  uint64_t number_of(const CallFacts& facts) noexcept;
  PageRecord* record_of(Ticket ticket) const noexcept;

  static constexpr size_t kNumKeys = 1024;
  struct Known {
    std::atomic<uint64_t> key{0};
    std::atomic<uint16_t> text{kNoText};
  };
  struct Messages {
    std::atomic<uint64_t> key{0};
    std::atomic<uint64_t> count{0};
  };

  const PageIdentity identity_;
  MemoryFile file_;
  Mapping mapping_;
  Page* page_;
  std::mutex mutex_;  // of new texts and groups
  std::array<Known, kNumKeys> known_;
  std::array<Messages, kNumKeys> messages_;
  std::map<std::string, uint64_t> occurrences_;  // of names of groups
  std::atomic<uint32_t> bad_kind_{0};
  std::atomic<int64_t> gradients_every_{0};
  std::atomic<bool> stops_{false};
  std::atomic<uint32_t> seen_wish_{0};
  mutable std::mutex words_mutex_;
  std::function<std::string()> words_of_ended_;
  std::mutex device_mutex_;
  int32_t device_step_ = -1;  // the newest step of which a device has done a call
  int64_t device_longest_ns_ = 0;
};

/// A call that was posted. Ends it when it goes away, unless its ticket was taken.
class Call {
 public:
  Call() = default;
  Call(Recorder* recorder, const CallFacts& facts) noexcept
      : recorder_(recorder), ticket_(recorder != nullptr ? recorder->post(facts) : Ticket{}) {}
  Call(Call&& other) noexcept : recorder_(other.recorder_), ticket_(other.take()) {}
  Call& operator=(Call&&) = delete;
  ~Call() {
    if (ticket_.sequence != 0) recorder_->end(ticket_);
  }
  /// Hands the end over to the caller.
  Ticket take() noexcept {
    const Ticket ticket = ticket_;
    ticket_ = {};
    return ticket;
  }

 private:
  Recorder* recorder_ = nullptr;
  Ticket ticket_ = {};
};

/// Sets the recorder that PhaseScope and alive() of this process use, or none. Process does that.
void set_process_recorder(std::shared_ptr<Recorder> recorder);
std::shared_ptr<Recorder> process_recorder();

/// The rank is in this phase while the scope lasts, and in the outer one again behind it. `name` is a literal:
/// "evaluate". Nothing happens in a process without a recorder.
class PhaseScope {
 public:
  explicit PhaseScope(const char* name);
  PhaseScope(std::shared_ptr<Recorder> recorder, const char* name);
  ~PhaseScope();
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  std::shared_ptr<Recorder> recorder_;
  uint32_t outer_ = 0;
};

/// Says that this rank makes progress, to be called in long work of the program's own.
void alive();

}  // namespace hasten::flight
