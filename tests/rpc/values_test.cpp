// Values of all kinds are read as they were written; what does not fit is refused; futures.
#include "hasten/rpc/values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <random>

#include "hasten/core/error.h"
#include "hasten/rpc/detail/codec.h"
#include "hasten/rpc/detail/containers.h"
#include "hasten/rpc/detail/members.h"
#include "hasten/rpc/detail/state.h"
#include "hasten/rpc/detail/thunk.h"
#include "hasten/rpc/future.h"
#include "hasten/rpc/json_values.h"
#include "hasten/rpc/writer.h"

namespace hasten::rpc {
namespace {

enum class Colour : uint8_t { kRed, kGreen };
struct Inner {
  int a = 0;
  std::vector<Inner> below = {};
  bool operator==(const Inner&) const = default;
};
struct Outer {
  Colour colour = Colour::kRed;
  std::string name;
  std::optional<double> maybe;
  std::map<std::string, Inner> inner;
  std::variant<int64_t, std::string> either;
  bool operator==(const Outer&) const = default;
};
class Hidden {
 public:
  Hidden() = default;
  explicit Hidden(int x) : x_(x) {}
  friend auto hasten_fields(Hidden& h) { return std::tie(h.x_); }
  bool operator==(const Hidden&) const = default;

 private:
  int x_ = 0;
};

template <class T>
T echo(const T& value) {
  detail::Packed packed;
  Writer writer(packed);
  detail::write(writer, value);
  Reader reader(packed, nullptr);
  T result = detail::read<T>(reader);
  EXPECT_EQ(reader.left(), 0u);
  return result;
}

TEST(Values, OfEveryKindComeBackEqual) {
  const Outer outer{Colour::kGreen, "name", 1.5, {{"k", {1, {{2, {}}, {3, {{4, {}}}}}}}}, std::string("text")};

  EXPECT_EQ(echo(outer), outer);
  EXPECT_EQ(echo(Hidden(7)), Hidden(7));
  EXPECT_EQ(echo(std::tuple(true, -1, 2.5f, std::string("x"))), std::tuple(true, -1, 2.5f, std::string("x")));
  EXPECT_EQ(echo(std::array<int, 3>{1, 2, 3}), (std::array<int, 3>{1, 2, 3}));
  EXPECT_EQ(echo(std::set<std::string>{"a", "b"}), (std::set<std::string>{"a", "b"}));
  EXPECT_EQ(echo(std::unordered_map<int, int>{{1, 2}}), (std::unordered_map<int, int>{{1, 2}}));
  EXPECT_EQ(echo(std::chrono::milliseconds(5)), std::chrono::milliseconds(5));
  EXPECT_EQ(echo(std::filesystem::path("/a/b")), "/a/b");
  EXPECT_EQ(echo(c10::Scalar(3)).toLong(), 3);
  EXPECT_EQ(echo(c10::Device("cuda:1")), c10::Device("cuda:1"));
  EXPECT_EQ(echo(core::Value::map({{"lr", 0.1}})), core::Value::map({{"lr", 0.1}}));
  EXPECT_EQ(echo(std::vector<bool>{true, false}), (std::vector<bool>{true, false}));
}

TEST(Values, TensorsKeepTheirLayout) {
  const auto dense = torch::rand({2, 3});
  const auto sparse = torch::sparse_coo_tensor(torch::tensor({{0, 1}, {1, 2}}), torch::tensor({1.0, 2.0}), {2, 3});

  EXPECT_TRUE(at::equal(echo(dense), dense));
  EXPECT_FALSE(echo(at::Tensor()).defined());
  EXPECT_TRUE(at::equal(echo(sparse).to_dense(), sparse.to_dense()));
  EXPECT_THROW(echo(dense.to_sparse_csr()), UsageError);
}

TEST(Values, SignaturesTellTypesApart) {
  EXPECT_EQ(detail::describe<std::vector<std::optional<double>>>(), "list<optional<f64>>");
  EXPECT_THAT(detail::describe<Outer>(), ::testing::HasSubstr("Inner{i32,self}"));
  EXPECT_NE(detail::describe<Inner>(), detail::describe<Hidden>());
  EXPECT_FALSE(detail::travels<std::mutex>());
  EXPECT_TRUE(detail::travels<Outer>());
  EXPECT_EQ(detail::num_members<Outer>(), 5u);
}

TEST(Values, ShortenedAndFlippedBytesAreRefusedOrRead) {
  detail::Packed packed;
  Writer writer(packed);
  detail::write(writer, Outer{Colour::kGreen, "name", 1.5, {{"k", {1, {{2, {}}}}}}, std::string("text")});
  std::mt19937 random(6);

  int refused = 0;
  for (int round = 0; round < 5000; ++round) {
    detail::Packed changed = packed;
    changed.bytes[changed.begin + random() % (changed.bytes.size() - changed.begin)] = static_cast<char>(random());
    if (round % 3 == 0) changed.bytes.resize(changed.begin + random() % (changed.bytes.size() - changed.begin));
    Reader reader(changed, nullptr);
    try {
      detail::read<Outer>(reader);
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(Future, ContinuationsFlattenAndErrorsPassThrough) {
  const Promise<int> promise;
  int seen = 0;
  const auto later = promise.future().then([](int x) { return Future<int>(x + 1); }).then([](int x) { return 2 * x; });
  later.add_done_callback([&](const Future<int>& future) { seen = future.value(); });
  promise.set(4);
  EXPECT_EQ(later.wait(), 10);
  EXPECT_EQ(seen, 10);

  const Promise<int> failing;
  bool called = false;
  const auto never = failing.future().then([&](int) { called = true; });
  failing.fail(std::runtime_error("broken"));
  EXPECT_THROW(never.wait(), std::runtime_error);
  EXPECT_FALSE(called);
}

TEST(Future, ADroppedPromiseACancelledAndACollectedOne) {
  auto promise = std::make_optional<Promise<int>>();
  const auto unanswered = promise->future();
  promise.reset();
  EXPECT_THROW(unanswered.wait(), CommError);

  const Promise<int> open;
  open.future().cancel();
  EXPECT_THROW(open.future().wait(), CommError);
  EXPECT_FALSE(open.set(1)) << "the first completion counts";

  const Promise<int> a, b;
  const auto all = collect_all(std::vector{a.future(), b.future()});
  b.set(2);
  EXPECT_FALSE(all.done());
  EXPECT_FALSE(all.wait_for(std::chrono::duration<double>(0.001)));
  a.set(1);
  EXPECT_EQ(wait_all(all.wait()), (std::vector{1, 2}));
  EXPECT_THROW((void)Promise<int>().future().value(), std::exception);
}

// No plain struct: only JSON can carry it.
class Account {
 public:
  Account() = default;
  explicit Account(int balance) : balance_(balance) {}
  int balance() const { return balance_; }
  friend void to_json(nlohmann::json& json, const Account& account) { json = {{"balance", account.balance_}}; }
  friend void from_json(const nlohmann::json& json, Account& account) { json.at("balance").get_to(account.balance_); }

 private:
  int balance_ = 0;
};

TEST(Values, WhatJsonConvertsTravelsAsText) {
  detail::Packed packed;
  Writer writer(packed);
  detail::write(writer, std::vector<Account>{Account(3), Account(4)});
  detail::write(writer, nlohmann::json{{"a", {1, 2}}});
  detail::write(writer, nlohmann::json{{"no", "balance"}});

  Reader reader(packed, nullptr);

  EXPECT_EQ(detail::read<std::vector<Account>>(reader).at(1).balance(), 4);
  EXPECT_EQ(detail::read<nlohmann::json>(reader), (nlohmann::json{{"a", {1, 2}}}));
  EXPECT_THROW(detail::read<Account>(reader), DataError);
}

}  // namespace
}  // namespace hasten::rpc
