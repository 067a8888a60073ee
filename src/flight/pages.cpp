// See pages.h.
#include "hasten/flight/pages.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <new>
#include <set>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "flight/proc.h"
#include "hasten/core/text.h"
#include "hasten/flight/page_notes.h"
#include "hasten/flight/recorder.h"

namespace hasten::flight {
namespace {

constexpr std::string_view kEndedByWatch = "\nended_by_watch\n";

template <size_t size>
std::string text_of(const char (&bytes)[size]) {
  return std::string(bytes, strnlen(bytes, size));
}

template <size_t size>
std::string text_of(const std::array<std::atomic<char>, size>& bytes) {
  std::string words;
  for (const auto& byte : bytes) {
    const char c = byte.load(kRelaxed);
    if (c == 0) break;
    words += c;
  }
  return words;
}

std::string facts_text(const Page& page) {
  std::string words;
  const uint32_t count = std::min<uint32_t>(page.answer.num_bytes.load(std::memory_order_acquire), kFactsBytes);
  for (uint32_t i = 0; i < count; ++i) words += page.answer.facts[i].load(kRelaxed);
  return words;
}

double since(int64_t then_ns, int64_t now) {
  return then_ns == 0 ? 0 : std::max<double>(0, static_cast<double>(now - then_ns) / 1e9);
}

// "RUN DELAY SLICES" in nanoseconds. 0 where the kernel does not count it.
double delay_of(pid_t pid) {
  const std::string words = read_text(text("/proc/", pid, "/schedstat"));
  const size_t space = words.find(' ');
  return space == std::string::npos ? 0 : static_cast<double>(std::strtoll(words.c_str() + space, nullptr, 10)) / 1e9;
}

/// A page that a launcher has made and no worker has announced.
struct Unwritten : std::runtime_error {
  Unwritten() : std::runtime_error("a page is not written yet") {}
};

class Reading {
 public:
  Reading(const Page& page, int64_t now) : page_(page), now_(now) {}

  RankState run() {
    read_head();
    read_life();
    read_now();
    for (const PageGroup& group : page_.groups) read_group(group);
    read_calls();
    return std::move(state_);
  }

  // `place` is a text's number + 1; 0 and what is out of range: "".
  std::string text_at(uint32_t place) const {
    const uint32_t count = std::min<uint32_t>(page_.num_texts.load(std::memory_order_acquire), kNumTexts);
    return place == 0 || place > count ? "" : text_of(page_.texts[place - 1]);
  }

 private:
  void read_head() {
    const PageHead& head = page_.head;
    state_.rank = head.rank;
    state_.world_size = std::max(1, head.world_size);
    state_.local_rank = head.local_rank;
    state_.local_world_size = std::max(1, head.local_world_size);
    state_.node_rank = head.node_rank;
    state_.restart_count = head.restart_count;
    state_.pid = static_cast<pid_t>(head.pid.load(kRelaxed));
    state_.run = text_of(head.run);
    state_.run_id = text_of(head.run_id);
    state_.host = text_of(head.host);
    state_.program = text_of(head.program);
    if (head.state.load() == 0 && state_.pid > 0) state_.program = program_name(state_.pid);  // it was the launcher's
    const uint32_t stands = head.state.load(std::memory_order_acquire);
    state_.state = static_cast<PageState>(std::min(stands, static_cast<uint32_t>(PageState::kFailed)));
    state_.heartbeat_s = since(head.heartbeat_ns.load(kRelaxed), now_);
  }

  void read_life() {
    const ProcessStat process = state_.pid > 0 ? read_process(state_.pid) : ProcessStat{};
    const uint64_t start = page_.head.start_ticks.load(kRelaxed);
    const bool other = start != 0 && process.start_ticks != start;
    state_.read_at_s = static_cast<double>(now_) / 1e9;
    state_.delayed_s = delay_of(state_.pid);
    if (process.state == 0 || process.state == 'Z' || process.state == 'X' || other) {
      state_.life = Life::kEnded;
    } else if (process.state == 'T') {
      state_.life = Life::kStopped;
    } else if (process.state == 't') {
      state_.life = Life::kTraced;
      const pid_t tracer = tracer_of(state_.pid);
      if (tracer > 0) state_.tracer = text(program_name(tracer), " (", tracer, ')');
    }
  }

  void read_now() {
    const PageNow& now = page_.now;
    state_.progress_s = since(now.progress_ns.load(kRelaxed), now_);
    state_.phase = text_at(now.phase.load(kRelaxed));
    state_.phase_s = since(now.phase_since_ns.load(kRelaxed), now_);
    state_.step = now.step.load(kRelaxed);
    state_.samples = now.samples.load(kRelaxed);
    state_.epoch = now.epoch.load(kRelaxed);
    state_.batch = now.batch.load(kRelaxed);
    state_.last_step_s = since(now.last_step_ns.load(kRelaxed), now_);
    state_.waited_s = static_cast<double>(now.waited_ns.load(kRelaxed)) / 1e9;
    const uint32_t steps = now.num_steps.load(kRelaxed);
    for (uint32_t i = steps > kNumSteps ? steps - kNumSteps : 0; i < steps; ++i) {
      state_.step_times_s.push_back(static_cast<double>(now.step_ns[i % kNumSteps].load(kRelaxed)) / 1e9);
    }
    for (int i = 0; i < kNumPhases; ++i) {
      const auto place = static_cast<size_t>(i);
      const std::string name = text_at(now.phase_text[place].load(kRelaxed));
      if (!name.empty()) state_.phase_times_s[name] = static_cast<double>(now.phase_ns[place].load(kRelaxed)) / 1e9;
    }
    if (const uint64_t loss = now.loss.load(kRelaxed); loss != 0) state_.loss = std::bit_cast<double>(loss);
    const int64_t step = now.bad_step.load(std::memory_order_acquire);
    if (step == 0 || now.bad_epoch.load(kRelaxed) < 0) return;
    state_.bad_step = std::abs(step);
    state_.bad_value = text_at(now.bad_text.load(kRelaxed));
    state_.bad_epoch = now.bad_epoch.load(kRelaxed);
    state_.bad_batch = now.bad_batch.load(kRelaxed);
  }

  void read_group(const PageGroup& group) {
    const uint64_t key = group.key.load(std::memory_order_acquire);
    if (key == 0) return;
    GroupState state{.key = key,
                     .name = text_of(group.name),
                     .rank = group.rank.load(kRelaxed),
                     .size = group.size.load(kRelaxed),
                     .calls = group.calls.load(kRelaxed),
                     .timeout_s = static_cast<double>(group.timeout_ms.load(kRelaxed)) / 1e3};
    if (state.size < 1 || state.size > 1 << 20 || state.rank < 0 || state.rank >= state.size) return;
    state_.groups.push_back(std::move(state));
  }

  void read_calls() {
    const uint64_t count = page_.num_records.load(std::memory_order_acquire);
    for (uint64_t index = count > kNumRecords ? count - kNumRecords : 0; index < count; ++index) {
      const PageRecord& record = page_.records[index % kNumRecords];
      const uint64_t sequence = record.sequence.load(std::memory_order_acquire);
      if (sequence != 2 * index + 2) continue;  // being written, or written again
      CallState call = read_call(record);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (record.sequence.load(kRelaxed) == sequence && call.group != 0) state_.calls.push_back(std::move(call));
    }
  }

  CallState read_call(const PageRecord& record) const {
    CallState call;
    const uint16_t group = record.group.load(kRelaxed);
    if (group >= kNumGroups) return call;
    call.group = page_.groups[group].key.load(kRelaxed);
    call.kind = static_cast<CallKind>(std::min<uint8_t>(record.kind.load(kRelaxed), 4));
    call.number = record.number.load(kRelaxed);
    call.label = text_at(record.label.load(kRelaxed) + uint32_t{1});
    call.site = text_at(record.site.load(kRelaxed) + uint32_t{1});
    call.purpose = text_at(record.purpose.load(kRelaxed) + uint32_t{1});
    call.purpose_number = record.purpose_number.load(kRelaxed);
    call.rule = static_cast<SizesRule>(std::min<uint8_t>(record.rule.load(kRelaxed), 2));
    call.dims = record.dims.load(kRelaxed);
    for (int i = 0; i < std::min(call.dims, kNumSizes); ++i) {
      call.sizes.push_back(record.sizes[static_cast<size_t>(i)].load(kRelaxed));
    }
    call.root = record.root.load(kRelaxed);
    call.peer = record.peer.load(kRelaxed);
    call.tag = record.tag.load(kRelaxed);
    call.thread = record.thread.load(kRelaxed);
    call.posted_s = since(record.posted_ns.load(kRelaxed), now_);
    call.ended = record.ended_ns.load(kRelaxed) != 0;
    const int64_t waited = record.waited_ns.load(kRelaxed);
    if (waited != 0 && !call.ended) call.waits_s = since(waited, now_);
    return call;
  }

  const Page& page_;
  const int64_t now_;
  RankState state_;
};

}  // namespace

PageView::PageView(const std::string& path) {
  int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) throw std::runtime_error(text(path, " cannot be opened: ", std::strerror(errno)));
  try {
    take(file);
  } catch (...) {
    close(file);
    throw;
  }
  close(file);
}

PageView::PageView(int descriptor) {
  take(descriptor);
}

void PageView::take(int descriptor) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0 || status.st_size != kPageBytes) {
    throw std::runtime_error(text("a page has ", status.st_size, " bytes; expected ", kPageBytes));
  }
  file_ = status.st_ino;
  mapping_ = Mapping(descriptor, kPageBytes, Mapping::Access::kReadWrite);
  page_ = std::launder(reinterpret_cast<Page*>(mapping_.data()));
  if (page_->head.magic.load(std::memory_order_acquire) == 0) throw Unwritten();
  if (page_->head.magic.load(std::memory_order_acquire) != kPageMagic || page_->head.version != kPageVersion) {
    throw std::runtime_error(text("a page is of version ", page_->head.version, "; expected ", kPageVersion));
  }
}

pid_t PageView::pid() const noexcept {
  return static_cast<pid_t>(page_->head.pid.load(kRelaxed));
}

RankState PageView::read() const {
  return Reading(*page_, now_ns()).run();
}

double PageView::longest_wait_s() const {
  int64_t first = INT64_MAX;
  for (const PageRecord& record : page_->records) {
    const int64_t waited = record.waited_ns.load(kRelaxed);
    if (waited != 0 && record.ended_ns.load(kRelaxed) == 0) first = std::min(first, waited);
  }
  return first == INT64_MAX ? 0 : since(first, now_ns());
}

int64_t PageView::step() const noexcept {
  return page_->now.step.load(kRelaxed);
}

std::optional<UnreportedValue> unreported_value(const Page& page) {
  const PageNow& now = page.now;
  const int64_t step = now.bad_step.load();
  if (step <= 0) return std::nullopt;
  const int64_t epoch = now.bad_epoch.load();
  return UnreportedValue{.name = Reading(page, now_ns()).text_at(now.bad_text.load(kRelaxed)),
                         .step = step,
                         .epoch = epoch < 0 ? -1 - epoch : epoch,
                         .batch = now.bad_batch.load(kRelaxed)};
}

bool has_reported_value(const Page& page) noexcept {
  return page.now.bad_step.load() < 0;
}

// The rank may find its values finite at the same time: one of the two sees what the other has written.
void note_value_reported(Page& page) noexcept {
  PageNow& now = page.now;
  int64_t step = now.bad_step.load();
  if (step > 0) now.bad_step.compare_exchange_strong(step, -step);
  if (now.bad_epoch.load() < 0) now.bad_step.store(0);
}

void note_end_by_watch(Page& page) noexcept {
  PageAnswer& answer = page.answer;
  const auto most = static_cast<uint32_t>(kFactsBytes - kEndedByWatch.size());
  const uint32_t begin = std::min(answer.num_bytes.load(kRelaxed), most);
  for (size_t i = 0; i < kEndedByWatch.size(); ++i) answer.facts[begin + i].store(kEndedByWatch[i], kRelaxed);
  answer.num_bytes.store(begin + static_cast<uint32_t>(kEndedByWatch.size()), std::memory_order_release);
}

bool is_ended_by_watch(const Page& page) {
  return facts_text(page).ends_with(kEndedByWatch);
}

void forget_calls(Page& page, int group) noexcept {
  page.groups[static_cast<size_t>(group)].calls.store(0, kRelaxed);
  for (PageRecord& record : page.records) {
    if (record.group.load(kRelaxed) == group) record.sequence.store(0, kRelaxed);
  }
}

PageState PageView::state() const noexcept {
  const uint32_t state = page_->head.state.load(std::memory_order_acquire);
  return static_cast<PageState>(std::min(state, static_cast<uint32_t>(PageState::kFailed)));
}

double PageView::progress_s() const {
  return since(page_->now.progress_ns.load(kRelaxed), now_ns());
}

double PageView::heartbeat_s() const {
  const int64_t beat = page_->head.heartbeat_ns.load(kRelaxed);
  return beat == 0 ? 1e9 : since(beat, now_ns());
}

void PageView::ask() const {
  page_->head.ask.fetch_add(1);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&page_->head.ask), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool PageView::has_answered() const {
  return page_->head.answered.load(std::memory_order_acquire) == page_->head.ask.load(kRelaxed);
}

void PageView::wish(const TraceWish& requested) const {
  PageWish& wish = page_->wish;
  const size_t count = std::min(requested.folder.size(), wish.folder.size() - 1);
  for (size_t i = 0; i < count; ++i) wish.folder[i].store(requested.folder[i], kRelaxed);
  wish.folder[count].store(0, kRelaxed);
  wish.steps.store(static_cast<uint32_t>(requested.steps), kRelaxed);
  wish.options.store(requested.with_shapes ? 1 : 0, kRelaxed);
  wish.state.store(static_cast<uint32_t>(WishState::kAsked), kRelaxed);
  wish.number.fetch_add(1, std::memory_order_release);
}

WishAnswer PageView::wish_answer() const {
  const uint32_t state = page_->wish.state.load(std::memory_order_acquire);
  return {static_cast<WishState>(std::min(state, static_cast<uint32_t>(WishState::kRefused))),
          text_of(page_->wish.words)};
}

std::vector<StackState> PageView::stacks() const {
  std::vector<StackState> all;
  const uint32_t count = std::min<uint32_t>(page_->answer.num_stacks.load(std::memory_order_acquire), kNumStacks);
  for (uint32_t i = 0; i < count; ++i) {
    const PageStack& stack = page_->answer.stacks[i];
    StackState state{.thread = static_cast<int>(stack.thread.load(std::memory_order_acquire))};
    const int frames = std::min<int>(stack.num_frames.load(kRelaxed), kNumFrames);
    const int scanned = std::min<int>(stack.num_scanned.load(kRelaxed), kNumFrames - frames);
    for (int k = 0; k < frames + scanned; ++k) {
      (k < frames ? state.frames : state.scanned).push_back(stack.frames[static_cast<size_t>(k)].load(kRelaxed));
    }
    if (state.thread != 0) all.push_back(std::move(state));
  }
  return all;
}

Facts PageView::facts() const {
  return read_facts(facts_text(*page_));
}

FoundPages find_pages() {
  FoundPages found;
  std::set<uint64_t> files;
  const uid_t user = geteuid();
  for (const int pid : numbers_in("/proc")) {
    const std::string folder = text("/proc/", pid, "/fd");
    struct stat status {};
    if (stat(folder.c_str(), &status) != 0 || status.st_uid != user) continue;
    for (const int descriptor : numbers_in(folder)) {
      const std::string path = text(folder, '/', descriptor);
      if (!read_link(path).starts_with(text("/memfd:", kPageLabel))) continue;
      if (stat(path.c_str(), &status) != 0 || !files.insert(status.st_ino).second) continue;
      try {
        found.pages.emplace_back(path);
      } catch (const Unwritten&) {
      } catch (const std::exception& error) {
        found.problems.push_back(text("process ", pid, ": ", error.what()));
      }
    }
  }
  std::sort(found.pages.begin(), found.pages.end(),
            [](const PageView& a, const PageView& b) { return a.page().head.rank < b.page().head.rank; });
  return found;
}

int64_t resident_bytes(pid_t pid) {
  return std::max<int64_t>(0, number_after(read_text(text("/proc/", pid, "/status")), "VmRSS:")) << 10;
}

void ask_all(const std::vector<const PageView*>& pages, double limit_s) {
  std::vector<const PageView*> requested;
  for (const PageView* page : pages) {
    // Without a recent heartbeat there is no thread that answers.
    if (page->read().life != Life::kRunning || page->heartbeat_s() > 60) continue;
    page->ask();
    requested.push_back(page);
  }
  const int64_t deadline = now_ns() + static_cast<int64_t>(limit_s * 1e9);
  while (now_ns() < deadline &&
         !std::all_of(requested.begin(), requested.end(), [](auto* page) { return page->has_answered(); })) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace hasten::flight
