#include "hasten/tracking/run/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

namespace hasten::tracking {
namespace {

const ProgressState kMiddle = {
    .description = "epoch 0", .done = 422, .total = 938, .elapsed_s = 10, .postfix = "loss 0.43"};

TEST(FormatProgress, FillsTheTerminalWithTheBar) {
  const std::string line = format_progress(kMiddle, 80);

  EXPECT_EQ(line, "epoch 0:  44%|=========>           | 422/938 [00:10<00:12, 42.2 it/s, loss 0.43]");
}

TEST(FormatProgress, AFinishedLoopHasAFullBar) {
  const std::string line = format_progress({.done = 938, .total = 938, .elapsed_s = 22.2}, 60);

  EXPECT_EQ(line, "100%|=====================| 938/938 [00:22<00:00, 42.3 it/s]");
}

TEST(FormatProgress, AtTheStartRateAndRemainingTimeAreUnknown) {
  const std::string line = format_progress({.description = "epoch 1", .total = 8}, 50);

  EXPECT_EQ(line, "epoch 1:   0%|>            | 0/8 [00:00<?, ? it/s]");
}

TEST(FormatProgress, WithoutColumnsThereIsNoBar) {
  EXPECT_EQ(format_progress(kMiddle), "epoch 0: 422/938 [00:10, 42.2 it/s, loss 0.43]");
}

TEST(FormatProgress, WithAnUnknownTotalThereIsNoBar) {
  const ProgressState state = {.description = "read", .unit = "files", .done = 7200, .elapsed_s = 3675};

  EXPECT_EQ(format_progress(state, 80), "read: 7200 [1:01:15, 1.96 files/s]");
}

TEST(FormatProgress, ALoopLongerThanItsTotalHasAnUnknownTotal) {
  EXPECT_EQ(format_progress({.done = 12, .total = 10, .elapsed_s = 1}, 80), "12 [00:01, 12.0 it/s]");
}

TEST(FormatProgress, AnEmptyLoopDividesByNothing) {
  EXPECT_EQ(format_progress({.total = 0}, 80), "0 [00:00, ? it/s]");
}

TEST(FormatProgress, ASlowLoopCountsSecondsPerUnit) {
  EXPECT_EQ(format_progress({.done = 2, .total = 4, .elapsed_s = 5}), "2/4 [00:05, 2.50 s/it]");
}

TEST(FormatProgress, AFastLoopHasAWholeNumberAsRate) {
  EXPECT_EQ(format_progress({.unit = "samples", .done = 60000, .total = 60000, .elapsed_s = 24}),
            "60000/60000 [00:24, 2500 samples/s]");
}

TEST(FormatProgress, ANarrowTerminalGetsNoBarAndThenLessText) {
  EXPECT_EQ(format_progress(kMiddle, 60), "epoch 0:  44% 422/938 [00:10<00:12, 42.2 it/s, loss 0.43]");
  EXPECT_EQ(format_progress(kMiddle, 20), "epoch 0:  44% 422/93");
}

TEST(FormatProgress, LengthsCountCharactersNotBytes) {
  const ProgressState state = {.description = "é", .done = 1, .total = 2, .elapsed_s = 1};

  EXPECT_EQ(format_progress(state, 43), "é:  50%|==>  | 1/2 [00:01<00:01, 1.00 it/s]");
  EXPECT_EQ(format_progress(state, 1), "é");
}

TEST(FormatProgress, ALineBreakInThePostfixBecomesABlank) {
  EXPECT_EQ(format_progress({.done = 1, .total = 1, .elapsed_s = 1, .postfix = "a\nb\r"}),
            "1/1 [00:01, 1.00 it/s, a b ]");
}

// Everything that can be read from `descriptor` now.
std::string read_all(int descriptor) {
  std::string all;
  char buffer[4096];
  for (pollfd ready{descriptor, POLLIN, 0}; poll(&ready, 1, 0) > 0 && (ready.revents & POLLIN) != 0;) {
    const ssize_t size = read(descriptor, buffer, sizeof buffer);
    if (size <= 0) break;
    all.append(buffer, static_cast<size_t>(size));
  }
  return all;
}

// Two ends: what is written to `output` comes out of text().
class Channel {
 public:
  ~Channel() {
    std::fclose(output);
    close(reader_);
  }
  std::string text() const { return read_all(reader_); }

  std::FILE* output = nullptr;

 protected:
  int reader_ = -1;
};

class Terminal : public Channel {
 public:
  explicit Terminal(unsigned short columns) {
    winsize size{};
    size.ws_col = columns;
    termios raw{};
    int writer = -1;
    cfmakeraw(&raw);
    if (openpty(&reader_, &writer, nullptr, &raw, &size) != 0) throw std::runtime_error("openpty failed");
    // Nobody reads while the bar writes: too much output must fail the test, not block it.
    fcntl(writer, F_SETFL, O_NONBLOCK);
    output = fdopen(writer, "w");
  }
};

class Pipe : public Channel {
 public:
  Pipe() {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("pipe failed");
    reader_ = ends[0];
    output = fdopen(ends[1], "w");
  }
};

// A clock that a test sets.
class ProgressOutput : public ::testing::Test {
 protected:
  ProgressOptions options(std::FILE* output) {
    return {.description = "epoch 0", .output = output, .clock_s = [this] { return now_s; }};
  }

  double now_s = 100;
};

TEST_F(ProgressOutput, ATerminalLineIsRedrawnInPlace) {
  const Terminal terminal(62);
  Progress bar(2, options(terminal.output));

  now_s += 1;
  bar.advance(1, "loss 1");
  now_s += 1;
  bar.advance(1, "loss 0.5");
  bar.finish();

  EXPECT_EQ(terminal.text(),
            "\repoch 0:   0%|>                       | 0/2 [00:00<?, ? it/s]"
            "\repoch 0:  50%|====>    | 1/2 [00:01<00:01, 1.00 it/s, loss 1]"
            "\repoch 0: 100%|=======| 2/2 [00:02<00:00, 1.00 it/s, loss 0.5]"
            "\repoch 0: 100%|=======| 2/2 [00:02<00:00, 1.00 it/s, loss 0.5]\n");
}

TEST_F(ProgressOutput, AShorterLineCoversTheLongerOneBefore) {
  const Terminal terminal(42);
  Progress bar(std::nullopt, options(terminal.output));

  now_s += 1;
  bar.advance(1, "loss 0.25");
  now_s += 1;
  bar.advance(1, "ok");

  EXPECT_EQ(terminal.text(),
            "\repoch 0: 0 [00:00, ? it/s]               "
            "\repoch 0: 1 [00:01, 1.00 it/s, loss 0.25] "
            "\repoch 0: 2 [00:02, 1.00 it/s, ok]        ");
}

TEST_F(ProgressOutput, RedrawsAreRareHoweverFastTheLoop) {
  const Terminal terminal(60);
  Progress bar(1000, options(terminal.output));

  for (int step = 0; step < 1000; ++step) {
    now_s += 0.001;
    bar.advance();
  }
  bar.finish();

  const std::string text = terminal.text();
  const auto redraws = std::count(text.begin(), text.end(), '\r');
  EXPECT_GE(redraws, 10);
  EXPECT_LE(redraws, 12);
  EXPECT_NE(text.find("1000/1000"), std::string::npos);
}

TEST_F(ProgressOutput, ATerminalOfUnknownWidthCountsAsEightyColumns) {
  const Terminal terminal(0);
  Progress bar(2, options(terminal.output));

  EXPECT_EQ(terminal.text().size(), 80u);
}

TEST_F(ProgressOutput, APipeGetsOneLineWhenTheLoopIsDone) {
  const Pipe pipe;
  Progress bar(3, options(pipe.output));

  for (int step = 0; step < 3; ++step) {
    now_s += 1;
    bar.advance(1, "loss 0.5");
  }
  const std::string before = pipe.text();
  bar.finish();

  EXPECT_EQ(before, "");
  EXPECT_EQ(pipe.text(), "epoch 0: 3/3 [00:03, 1.00 it/s, loss 0.5]\n");
}

TEST_F(ProgressOutput, FinishingTwiceWritesOneLine) {
  const Pipe pipe;
  {
    Progress bar(1, options(pipe.output));
    now_s += 1;
    bar.advance();
    bar.finish();
    bar.advance();
    bar.finish();
  }

  EXPECT_EQ(pipe.text(), "epoch 0: 1/1 [00:01, 1.00 it/s]\n");
}

TEST_F(ProgressOutput, AnExceptionLeavesAWholeLineWithHowFarTheLoopCame) {
  const Pipe pipe;

  const auto loop = [&] {
    Progress bar(5, options(pipe.output));
    now_s += 1;
    bar.advance(2);
    throw std::runtime_error("out of data");
  };

  EXPECT_THROW(loop(), std::runtime_error);
  EXPECT_EQ(pipe.text(), "epoch 0: 2/5 [00:01, 2.00 it/s]\n");
}

TEST_F(ProgressOutput, AThrowingClockDoesNotLeaveTheDestructor) {
  const Pipe pipe;
  bool broken = false;
  {
    Progress bar(1, {.output = pipe.output, .clock_s = [&broken] {
                       if (broken) throw std::runtime_error("no clock");
                       return 0.0;
                     }});
    broken = true;
  }

  EXPECT_EQ(pipe.text(), "");
}

TEST_F(ProgressOutput, ADisabledBarWritesNothing) {
  const Terminal terminal(60);
  {
    ProgressOptions off = options(terminal.output);
    off.enabled = false;
    Progress bar(2, off);
    bar.advance(2, "loss");
    bar.finish();
  }

  EXPECT_EQ(terminal.text(), "");
}

TEST(FormatProgress, LessThanNothingDoneIsNothing) {
  const std::string start = format_progress({.total = 8}, 50);

  for (const int64_t done : {-1, -8, -100000}) {
    EXPECT_EQ(format_progress({.done = done, .total = 8}, 50), start);
  }
}

}  // namespace
}  // namespace hasten::tracking
