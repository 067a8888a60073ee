// See messages.h.
#include "parallel/pipeline/messages.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/interception/interceptor.h"

namespace hasten::parallel::pipeline {
namespace {

// The first message of told numbers: how many there are, and those that fit.
constexpr int64_t kRow = 128;
// In the place of their number: words of a failure follow.
constexpr int64_t kFailure = -1;

// Interceptors, recorders and autograd see nothing of messages.
struct Unseen {
  interception::PassScope pass;
  at::NoGradGuard no_grad;
};

at::Tensor row_of(const int64_t* words, size_t count, int64_t size) {
  const at::Tensor row = at::empty({size}, at::kLong);
  std::copy_n(words, count, row.mutable_data_ptr<int64_t>());
  return row;
}

}  // namespace

void Messages::send(const at::Tensor& tensor, int to, int tag) {
  const Unseen unseen;
  const at::Tensor values = tensor.detach().contiguous();
  ++sent_.calls;
  sent_.bytes += static_cast<int64_t>(values.nbytes());
  at_place(place_, [&] {
    std::erase_if(under_way_, [](auto& work) {
      if (!work.done()) return false;
      work.wait();  // an error is this rank's, too
      return true;
    });
    under_way_.push_back(group_.send_async(values.is_cpu() ? values : values.cpu(), to, tag));
  });
}

at::Tensor Messages::receive(const std::vector<int64_t>& sizes, const at::TensorOptions& options, int from,
                             int tag) const {
  const Unseen unseen;
  const at::Tensor values = at::empty(sizes, options.device(at::kCPU));
  const auto begin = std::chrono::steady_clock::now();
  at_place(place_, [&] { group_.receive_(values, from, tag); });
  waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return options.device().is_cpu() ? values : values.to(options.device());
}

void Messages::finish() {
  at_place(place_, [&] {
    for (auto& work : std::exchange(under_way_, {})) work.wait();
  });
}

void Messages::tell(const std::vector<int64_t>& words, int tag) {
  std::vector<int64_t> all{static_cast<int64_t>(words.size())};
  all.insert(all.end(), words.begin(), words.end());
  const at::Tensor first = row_of(all.data(), std::min<size_t>(all.size(), kRow), kRow);
  const size_t rest = all.size() > kRow ? all.size() - kRow : 0;
  for (int to = 0; to < num_ranks(); ++to) {
    if (to == rank()) continue;
    send(first, to, tag);
    if (rest > 0) send(row_of(all.data() + kRow, rest, static_cast<int64_t>(rest)), to, tag);
  }
}

std::vector<int64_t> Messages::received(int from, int tag) const {
  const auto read = [&](int64_t size) { return receive({size}, at::TensorOptions(at::kLong), from, tag); };
  const at::Tensor first = read(kRow);
  const auto* const row = first.const_data_ptr<int64_t>();
  if (row[0] == kFailure) {
    const at::Tensor text = read(row[1]);
    std::string words;
    for (int64_t i = 0; i < row[1]; ++i) words += static_cast<char>(text.const_data_ptr<int64_t>()[i]);
    throw UsageError(Origin{"pipeline", rank(), num_ranks()}, "rank ", from, " failed in the forward: ", words);
  }
  std::vector<int64_t> words(row + 1, row + 1 + std::min(row[0], kRow - 1));
  if (const int64_t rest = row[0] - (kRow - 1); rest > 0) {
    const at::Tensor more = read(rest);
    words.insert(words.end(), more.const_data_ptr<int64_t>(), more.const_data_ptr<int64_t>() + rest);
  }
  return words;
}

void Messages::tell_failure(const std::string& words, int tag) {
  std::vector<int64_t> letters(words.begin(), words.end());
  if (letters.empty()) letters.push_back('?');
  const std::vector<int64_t> head{kFailure, static_cast<int64_t>(letters.size())};
  for (int to = 0; to < num_ranks(); ++to) {
    if (to == rank()) continue;
    send(row_of(head.data(), head.size(), kRow), to, tag);
    send(row_of(letters.data(), letters.size(), static_cast<int64_t>(letters.size())), to, tag);
  }
}

}  // namespace hasten::parallel::pipeline
