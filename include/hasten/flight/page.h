// The page: 128 KB of memory in which a rank writes down its place in the run.
//
// It lies in a memory file (core/memory_file.h). Other processes of the same user read it without a right, a socket or
// a folder, and read it still when its rank was killed. All words are relaxed atomics. A record has a sequence number,
// odd while it is written. recorder.h writes pages, pages.h finds and reads them. docs/formats/flight.md has the
// layout.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace hasten::flight {

inline constexpr uint64_t kPageMagic = 0x746867696c666e68;  // "hnflight"
inline constexpr uint32_t kPageVersion = 2;
inline constexpr int64_t kPageBytes = int64_t{128} << 10;
/// The memory file's name in /proc/PID/fd.
inline constexpr const char* kPageLabel = "hasten-flight";

inline constexpr int kNumGroups = 64;
inline constexpr int kNumRecords = 256;
inline constexpr int kNumTexts = 256;
inline constexpr int kTextBytes = 96;
inline constexpr int kNumPhases = 16;
inline constexpr int kNumSteps = 32;
inline constexpr int kNumSizes = 4;
inline constexpr int kNumStacks = 64;
inline constexpr int kNumFrames = 48;
inline constexpr int kFactsBytes = 16 << 10;
inline constexpr int kWishBytes = 256;
/// The number of a text that found no place.
inline constexpr uint16_t kNoText = 0xffff;

using Word = std::atomic<uint64_t>;
using Signed = std::atomic<int64_t>;
using Half = std::atomic<uint32_t>;

inline constexpr auto kRelaxed = std::memory_order_relaxed;

/// How the rank's part in the run stands.
enum class PageState : uint32_t {
  kAnnounced,  ///< made by the launcher; the worker has not taken it
  kRunning,
  kLeft,    ///< its Process has ended in order
  kFailed,  ///< an uncaught exception ends it
};

/// Written before `magic`, but for the words of the second part.
struct PageHead {
  Word magic;
  uint32_t version;
  uint32_t num_bytes;
  int32_t rank, world_size, local_rank, local_world_size, node_rank, restart_count;
  Half pid;
  Half state;        ///< PageState
  Word start_ticks;  ///< of the process, as /proc/PID/stat has it
  char run[96];      ///< equal on the ranks of one run: the store's address, the attempt
  char run_id[64];   ///< TORCHELASTIC_RUN_ID, or empty
  char host[64];
  char program[64];
  Signed heartbeat_ns;  ///< when the watch thread last woke (CLOCK_MONOTONIC)
  Half ask, answered;   ///< futex: a number asked for, the last one answered
  Half mute;            ///< 1: its standard error takes nothing, so another rank has to report
};

/// How a wish for a profile stands.
enum class WishState : uint32_t {
  kNone,
  kAsked,
  kRecording,
  kWritten,  ///< `words` is the file
  kRefused,  ///< `words` is the reason
};

/// A profile that another process asks for, and the rank's answer.
struct PageWish {
  Half number;   ///< of the wish; written last by the asker
  Half steps;    ///< how many
  Half options;  ///< bits of WishOptions
  Half state;    ///< WishState; with the answer's words before it
  std::array<std::atomic<char>, kWishBytes> folder, words;
};

/// The rank's present place. Times are CLOCK_MONOTONIC.
struct PageNow {
  Signed progress_ns;  ///< the last sign of progress
  Signed phase_since_ns;
  Half phase;  ///< a text's number + 1; 0: none
  Half num_steps;
  Signed step, samples, epoch, batch;
  Signed last_step_ns;                      ///< when the last step ended
  Signed waited_ns;                         ///< in collectives, in all; on a device the longest of each step
  Word loss;                                ///< the bits of the last loss, a double
  Signed bad_step;                          ///< the first step with a value that is not finite, -1 or 0: none
  Signed bad_epoch, bad_batch;              ///< the epoch and the batch of it at that step
  Half bad_text;                            ///< its name, a text's number + 1
  Half refused_groups;                      ///< groups that found no place
  Signed io_bytes;                          ///< of files, as the watch thread last saw them
  std::array<Signed, kNumSteps> step_ns;    ///< durations of the last steps, by number
  std::array<Half, kNumPhases> phase_text;  ///< texts + 1
  std::array<Signed, kNumPhases> phase_ns;  ///< the time in each, in all
};

/// A group of the rank. `key` is equal on its members and on no other group.
struct PageGroup {
  Word key;    ///< 0: the place is free
  Word calls;  ///< the number of the last call; the meeting is number 0
  std::atomic<int32_t> rank, size;
  Signed timeout_ms;
  std::array<std::atomic<char>, 96> name;
};

/// The kind of a recorded call.
enum class CallKind : uint8_t { kCollective, kMeeting, kSend, kReceive, kRemote };

/// Which sizes of a call are equal on all ranks.
enum class SizesRule : uint8_t { kEqual, kFirstMayDiffer, kNone };

/// A call of a collective or a message.
struct alignas(64) PageRecord {
  Word sequence;                          ///< 2 * (its index in all of the rank's records) + 2; odd while it is written
  Word number;                            ///< of the group's calls, or of the messages with this peer and tag
  Signed posted_ns, waited_ns, ended_ns;  ///< 0: not yet, or not any more
  Signed purpose_number;
  std::atomic<uint16_t> group, label, site, purpose;  ///< places and texts; kNoText: none
  std::atomic<uint8_t> kind, rule, dims, padding;
  Half thread;
  std::atomic<int32_t> root, peer, tag;
  std::atomic<int32_t> step;  ///< the rank's, when it was posted
  std::array<Signed, kNumSizes> sizes;
};
static_assert(sizeof(PageRecord) == 128);

/// One thread's answer. `thread` is written last.
struct PageStack {
  Half thread;
  std::atomic<uint16_t> num_frames;   ///< by the unwinder
  std::atomic<uint16_t> num_scanned;  ///< behind them: addresses of the program that lie on the stack
  std::array<Word, kNumFrames> frames;
};

struct PageAnswer {
  Half num_stacks, num_done;
  std::array<PageStack, kNumStacks> stacks;
  Half num_bytes;
  std::array<std::atomic<char>, kFactsBytes> facts;
};

struct Page {
  PageHead head;
  PageWish wish;
  PageNow now;
  std::array<PageGroup, kNumGroups> groups;
  Word num_records;
  std::array<PageRecord, kNumRecords> records;
  Half num_texts;
  std::array<std::array<std::atomic<char>, kTextBytes>, kNumTexts> texts;
  PageAnswer answer;
};
static_assert(sizeof(Page) <= static_cast<size_t>(kPageBytes));
static_assert(Word::is_always_lock_free && Half::is_always_lock_free);

}  // namespace hasten::flight
