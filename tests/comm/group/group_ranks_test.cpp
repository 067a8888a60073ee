#include "hasten/comm/group/group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <limits>

#include "hasten/core/error.h"
#include "support/ranks.h"

namespace hasten::comm {
namespace {

using process::Process;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_collecting;

const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kDouble,        at::kHalf,         at::kBFloat16,
                                             at::kByte,  at::kChar,          at::kShort,        at::kInt,
                                             at::kLong,  at::kComplexDouble, at::kComplexFloat, at::kBool};

at::Tensor values(int rank, at::ScalarType dtype, at::IntArrayRef shape) {
  return (torch::arange(c10::multiply_integers(shape), at::kDouble).view(shape) + rank).to(dtype);
}

TEST(GroupRanks, AllReduceSumsEveryDtype) {
  run_ranks(3, [](Process& process) {
    for (const auto dtype : kDtypes) {
      at::Tensor tensor = values(process.rank(), dtype, {2, 3});
      const at::Tensor expected = dtype == at::kBool
                                      ? torch::ones({2, 3}, dtype)
                                      : values(0, dtype, {2, 3}) + values(1, dtype, {2, 3}) + values(2, dtype, {2, 3});

      process.group().all_reduce_(tensor);

      ASSERT_TRUE(torch::equal(tensor, expected)) << dtype << '\n' << tensor;
    }
  });
}

TEST(GroupRanks, AllReduceTakesEveryOperation) {
  run_ranks(2, [](Process& process) {
    const auto reduced = [&](ReduceOp op) {
      at::Tensor tensor = torch::tensor({1.0, 2.0, -3.0}) * (process.rank() + 1);
      process.group().all_reduce_(tensor, op);
      return tensor;
    };

    EXPECT_TRUE(torch::equal(reduced(ReduceOp::kSum), torch::tensor({3.0, 6.0, -9.0})));
    EXPECT_TRUE(torch::equal(reduced(ReduceOp::kMean), torch::tensor({1.5, 3.0, -4.5})));
    EXPECT_TRUE(torch::equal(reduced(ReduceOp::kMin), torch::tensor({1.0, 2.0, -6.0})));
    EXPECT_TRUE(torch::equal(reduced(ReduceOp::kMax), torch::tensor({2.0, 4.0, -3.0})));
    EXPECT_TRUE(torch::equal(reduced(ReduceOp::kProduct), torch::tensor({2.0, 8.0, 18.0})));
  });
}

TEST(GroupRanks, NonContiguousScalarAndEmptyTensorsAreReducedInPlace) {
  run_ranks(2, [](Process& process) {
    const at::Tensor base = torch::ones({4, 3});
    at::Tensor column = base.select(1, 1);
    at::Tensor scalar = torch::tensor(2.0);
    at::Tensor empty = torch::empty({0, 5});
    at::Tensor leaf = torch::ones({2}, torch::requires_grad());

    process.group().all_reduce_(column);
    process.group().all_reduce_(scalar);
    process.group().all_reduce_(empty);
    process.group().all_reduce_(leaf);

    EXPECT_EQ(base.sum().item<double>(), 16);
    EXPECT_EQ(scalar.item<double>(), 4);
    EXPECT_TRUE(torch::equal(leaf, torch::full({2}, 2.0)));
  });
}

TEST(GroupRanks, MeansOfIntegersAndExtremesOfComplexNumbersAreRefusedByName) {
  run_ranks(2, [](Process& process) {
    try {
      process.group().all_reduce_(torch::ones({2}, at::kLong), ReduceOp::kMean);
      ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("the mean of Long tensors"));
    }
    EXPECT_THROW(process.group().all_reduce_(torch::ones({2}, at::kComplexFloat), ReduceOp::kMax), UsageError);
  });
}

TEST(GroupRanks, ReduceGivesOnlyTheRootTheResult) {
  run_ranks(3, [](Process& process) {
    at::Tensor tensor = torch::full({4}, process.rank() + 1.0);

    process.group().reduce_(tensor, 1);

    EXPECT_EQ(tensor[0].item<double>(), process.rank() == 1 ? 6 : process.rank() + 1);
  });
}

TEST(GroupRanks, BroadcastMovesEveryDtypeFromTheRoot) {
  run_ranks(3, [](Process& process) {
    for (const auto dtype : kDtypes) {
      at::Tensor tensor = values(process.rank(), dtype, {3, 2}).t();

      process.group().broadcast_(tensor, 2);

      ASSERT_TRUE(torch::equal(tensor, values(2, dtype, {3, 2}).t())) << dtype;
    }
  });
}

TEST(GroupRanks, AllGatherKeepsUnequalFirstSizes) {
  run_ranks(3, [](Process& process) {
    const int rank = process.rank();

    const auto parts = process.group().all_gather(torch::full({rank, 2}, rank, at::kInt));

    ASSERT_EQ(parts.size(), 3u);
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_TRUE(torch::equal(parts[peer], torch::full({peer, 2}, peer, at::kInt))) << peer;
    }
  });
}

TEST(GroupRanks, AllGatherTakesScalarsAndBooleans) {
  run_ranks(2, [](Process& process) {
    const auto scalars = process.group().all_gather(torch::tensor(process.rank() + 0.5));
    const auto flags = process.group().all_gather(torch::tensor({process.rank() == 1}));

    EXPECT_EQ(scalars[1].item<double>(), 1.5);
    EXPECT_EQ(scalars[1].dim(), 0);
    EXPECT_FALSE(flags[0].item<bool>());
    EXPECT_TRUE(flags[1].item<bool>());
  });
}

TEST(GroupRanks, AllGatherIntoFillsOneTensor) {
  run_ranks(2, [](Process& process) {
    at::Tensor output = torch::empty({4, 2}, at::kBFloat16);

    process.group().all_gather_into_(output, torch::full({2, 2}, process.rank(), at::kBFloat16));

    EXPECT_EQ(output.sum().item<double>(), 4);
    EXPECT_EQ(output[0].sum().item<double>(), 0);
  });
}

TEST(GroupRanks, GatherAndScatterAreInverse) {
  run_ranks(3, [](Process& process) {
    const at::Tensor mine = torch::arange(process.rank() + 1, at::kLong) * 10;

    const auto gathered = process.group().gather(mine, 2);
    const at::Tensor back = process.group().scatter(gathered, 2);

    EXPECT_EQ(gathered.size(), process.rank() == 2 ? 3u : 0u);
    EXPECT_TRUE(torch::equal(back, mine));
  });
}

TEST(GroupRanks, ScatterWithAPartTooFewFailsOnEveryRank) {
  const auto words = run_ranks_collecting(2, [](Process& process) { process.group().scatter({torch::ones({1})}, 0); });

  EXPECT_THAT(words[0], HasSubstr("gave 1 parts; it needs one for each of the 2 ranks"));
  EXPECT_THAT(words[1], HasSubstr("gave unusable parts"));
}

TEST(GroupRanks, ReduceScatterGivesEachRankItsPart) {
  run_ranks(2, [](Process& process) {
    const at::Tensor input = torch::arange(8, at::kFloat).view({4, 2}) * (process.rank() + 1);

    const at::Tensor sum = process.group().reduce_scatter(input);
    const at::Tensor mean = process.group().reduce_scatter(input.to(at::kDouble), ReduceOp::kMean);

    const at::Tensor expected =
        torch::arange(8, at::kFloat).view({4, 2}).slice(0, process.rank() * 2, process.rank() * 2 + 2) * 3;
    EXPECT_TRUE(torch::equal(sum, expected));
    EXPECT_TRUE(torch::equal(mean, expected.to(at::kDouble) / 2));
  });
}

// Into memory of its own, a part of the input, and what is not contiguous; and dtypes that travel as others.
TEST(GroupRanks, ReduceScatterIntoFillsATensor) {
  run_ranks(3, [](Process& process) {
    const Group& group = process.group();
    const auto mine = [&](const at::Tensor& whole) { return whole.narrow(0, 2 * group.rank(), 2); };
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kComplexFloat}) {
      const at::Tensor numbers = torch::arange(12).view({6, 2}), input = (numbers * (group.rank() + 1)).to(dtype);
      const at::Tensor expected = mine(numbers * 6).to(dtype);
      const at::Tensor output = torch::empty({2, 2}, dtype), turned = torch::empty({2, 2}, dtype).t();

      group.reduce_scatter_into_(output, input);
      group.reduce_scatter_into_(turned, input);
      EXPECT_TRUE(torch::equal(output, expected)) << output;
      EXPECT_TRUE(torch::equal(turned, expected)) << turned;
      if (dtype != at::kLong) {
        group.reduce_scatter_into_(output, input, ReduceOp::kMean);
        EXPECT_TRUE(torch::equal(output, mine(numbers * 2).to(dtype))) << output;
      }
      group.reduce_scatter_into_(mine(input), input);
      EXPECT_TRUE(torch::equal(mine(input), expected)) << input;
    }
  });
}

TEST(GroupRanks, ReduceScatterIntoAnotherSizeOrDtypeIsRefused) {
  run_ranks(2, [](Process& process) {
    const auto words = [&](const at::Tensor& output, const at::Tensor& input) -> std::string {
      try {
        process.group().reduce_scatter_into_(output, input);
      } catch (const UsageError& error) {
        return error.what();
      }
      return "no error";
    };

    EXPECT_THAT(words(torch::empty({3}), torch::ones({4})),
                HasSubstr("the input is Float of 4 elements; world_size(2) * output(3) = 6 of Float are needed"));
    EXPECT_THAT(words(torch::empty({2}, at::kLong), torch::ones({4})), HasSubstr("4 of Long are needed"));
  });
}

TEST(GroupRanks, AllToAllTransposesUnequalParts) {
  run_ranks(3, [](Process& process) {
    std::vector<at::Tensor> parts;
    for (int peer = 0; peer < 3; ++peer)
      parts.push_back(torch::full({peer, 2}, 10 * process.rank() + peer, at::kShort));

    const auto received = process.group().all_to_all(parts);

    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_TRUE(
          torch::equal(received[peer], torch::full({process.rank(), 2}, 10 * peer + process.rank(), at::kShort)));
    }
  });
}

// Where they lie one behind the other a backend may take them as one.
TEST(GroupRanks, AllToAllTakesPartsOfOneTensorInAnyOrder) {
  run_ranks(3, [](Process& process) {
    const auto whole = [](int rank) { return 100 * rank + torch::arange(9); };
    using Bounds = std::vector<std::pair<int64_t, int64_t>>;
    for (const Bounds& bounds : {Bounds{{0, 2}, {2, 7}, {7, 9}},
                                 {{7, 9}, {2, 7}, {0, 2}},
                                 {{0, 4}, {3, 3}, {4, 9}},
                                 {{0, 2}, {3, 5}, {5, 9}},
                                 {{2, 6}, {2, 6}, {6, 9}}}) {
      const auto part = [&](int from, int to) { return whole(from).slice(0, bounds[to].first, bounds[to].second); };
      const at::Tensor mine = whole(process.rank());
      std::vector<at::Tensor> parts;
      for (const auto& [begin, end] : bounds) parts.push_back(mine.slice(0, begin, end));

      const auto received = process.group().all_to_all(parts);

      for (int from = 0; from < 3; ++from) {
        ASSERT_TRUE(torch::equal(received[from], part(from, process.rank()))) << bounds[0].first << bounds[1].first;
      }
    }
  });
}

TEST(GroupRanks, AllToAllIntoFillsOneTensor) {
  for (const bool check : {true, false}) {
    run_ranks(3,
              [](Process& process) {
                const int rank = process.rank();
                const auto rows_from = [&](at::ScalarType dtype, int64_t begin, int64_t end) {
                  std::vector<at::Tensor> parts;
                  for (int peer = 0; peer < 3; ++peer)
                    parts.push_back(values(10 * peer, dtype, {6, 2}).slice(0, begin, end));
                  return at::cat(parts);
                };
                for (const auto dtype : kDtypes) {
                  const at::Tensor input = values(10 * rank, dtype, {6, 2});
                  at::Tensor equal = torch::empty_like(input), turned = torch::empty({2, 6}, dtype).t();
                  at::Tensor unequal = torch::empty({3 * rank, 2}, dtype);

                  process.group().all_to_all_into_(equal, input);
                  process.group().all_to_all_into_(turned, input.t().contiguous().t());
                  // Rank r gets r rows of each: none, the first, the second and the third.
                  process.group().all_to_all_into_(unequal, input.slice(0, 0, 3),
                                                   {.input = {0, 1, 2}, .output = {rank, rank, rank}});

                  ASSERT_TRUE(torch::equal(equal, rows_from(dtype, 2 * rank, 2 * rank + 2))) << dtype;
                  ASSERT_TRUE(torch::equal(turned, equal)) << dtype;
                  const int begin = rank == 2 ? 1 : 0;
                  ASSERT_TRUE(torch::equal(unequal, rows_from(dtype, begin, begin + rank))) << dtype;
                }
                at::Tensor nothing = torch::empty({0, 4});
                process.group().all_to_all_into_(nothing, torch::empty({0, 4}));
              },
              {.check = check});
  }
}

TEST(GroupRanks, AllToAllIntoOfOtherRowsSizesOrDtypesIsRefused) {
  run_ranks(2, [](Process& process) {
    const auto words = [&](at::Tensor output, const at::Tensor& input, const AllToAllRows& rows = {}) {
      try {
        process.group().all_to_all_into_(std::move(output), input, rows);
      } catch (const UsageError& error) {
        return std::string(error.what());
      }
      return std::string("no error");
    };

    const at::Tensor two = torch::empty({2, 3}), three = torch::empty({3, 3});
    EXPECT_THAT(words(two, three), HasSubstr("the input, of shape [3, 3], cannot be cut into world_size(2)"));
    EXPECT_THAT(words(torch::tensor(1.0F), two), HasSubstr("the output, of shape [], has no rows"));
    const std::string remedy = "Give one number for each of the 2 ranks, 0 or more, of together 3";
    for (const auto& rows : std::vector<std::vector<int64_t>>{{1, 1}, {3}, {4, -1}, {1, 1, 1}}) {
      EXPECT_THAT(words(two, three, {.input = rows}), HasSubstr(remedy)) << rows;
    }
    EXPECT_THAT(words(two, torch::empty({2, 4})), HasSubstr("the output is Float [2, 3], the input Float [2, 4]"));
    EXPECT_THAT(words(two, torch::empty({2, 3}, at::kInt)), HasSubstr("the input Int [2, 3]"));
  });
}

TEST(GroupRanks, RowsThatOneGivesAndAnotherDoesNotTakeAreNamedOnEveryRank) {
  const auto words = run_ranks_collecting(3, [](Process& process) {
    const int rank = process.rank();
    at::Tensor output = torch::empty({rank == 2 ? 6 : 3});
    const std::vector<int64_t> take = rank == 2 ? std::vector<int64_t>{1, 4, 1} : std::vector<int64_t>{1, 1, 1};
    process.group().all_to_all_into_(output, torch::ones({3}), {.output = take});
  });

  for (const auto& said : words) {
    EXPECT_THAT(said, HasSubstr("rank 1 gives 1 rows to rank 2, which takes 4"));
  }
}

TEST(GroupRanks, AsynchronousOperationsFinishInAnyOrderOfWaiting) {
  run_ranks(2, [](Process& process) {
    at::Tensor first = torch::ones({3});
    at::Tensor second = torch::full({3}, 2.0);

    auto a = process.group().all_reduce_async_(first);
    auto b = process.group().all_reduce_async_(second, ReduceOp::kMean);
    b.wait();
    a.wait();

    EXPECT_EQ(first[0].item<double>(), 2);
    EXPECT_EQ(second[0].item<double>(), 2);
  });
}

TEST(GroupRanks, ADroppedWorkStillMovesItsData) {
  run_ranks(2, [](Process& process) {
    if (process.rank() == 0) {
      static_cast<void>(process.group().send_async(torch::full({100}, 7.0), 1));
    } else {
      at::Tensor received = torch::zeros({100});
      process.group().receive_(received, 0);
      EXPECT_EQ(received.sum().item<double>(), 700);
    }
    process.group().barrier();
  });
}

TEST(GroupRanks, SmallSumsAreAddedUpInTheOrderOfTheRanks) {
  // In any other order one of the ones would be lost in the large number.
  const std::vector<float> values = {1e8F, -1e8F, 1, 1};
  run_ranks(4,
            [&](Process& process) {
              const at::Tensor sum = torch::full({1000}, values[static_cast<size_t>(process.rank())]);

              process.group().all_reduce_(sum);

              EXPECT_TRUE(torch::equal(sum, torch::full({1000}, 2.0F)));
            },
            {.adjust = [](int, GroupOptions& options) { options.backend = BackendKind::kGloo; }});
}

TEST(GroupRanks, AllReducesOfManySizesInTurnAreRight) {
  const std::vector<int64_t> sizes = {0, 1, 63, 4096, 16'384, 32'768, 65'536, 65'537, 300'000};
  for (const int world_size : {2, 3}) {
    run_ranks(world_size, [&](Process& process) {
      std::vector<Work<>> works;
      std::vector<at::Tensor> tensors;
      for (const int64_t numel : sizes) {
        tensors.push_back(torch::arange(numel) + process.rank());
        works.push_back(process.group().all_reduce_async_(tensors.back()));
      }
      for (auto& work : works) work.wait();
      const int64_t ranks = world_size * (world_size - 1) / 2;
      for (const at::Tensor& tensor : tensors) {
        ASSERT_TRUE(torch::equal(tensor, world_size * torch::arange(tensor.numel()) + ranks)) << tensor.numel();
      }
    });
  }
}

TEST(GroupRanks, UncheckedSmallOperationsThatDifferOverGlooNameBothSidesAndTheGroupGoesOn) {
  run_ranks(3,
            [](Process& process) {
              const auto& group = process.group();
              at::Tensor tensor = torch::ones({process.rank() == 1 ? 20 : 10});
              EXPECT_THAT(
                  [&] { group.all_reduce_(tensor); },
                  ::testing::ThrowsMessage<CommError>(AllOf(HasSubstr("rank 0 calls all_reduce(sum) of 10 Float"),
                                                            HasSubstr("rank 1 calls all_reduce(sum) of 20 Float"))));
              EXPECT_THAT(
                  [&] { group.broadcast_(torch::ones({4}), process.rank() == 2 ? 1 : 0); },
                  ::testing::ThrowsMessage<CommError>(AllOf(HasSubstr("rank 0 calls broadcast of 16 bytes, root 0"),
                                                            HasSubstr("rank 2 calls broadcast of 16 bytes, root 1"))));
              at::Tensor next = torch::ones({5});
              group.all_reduce_(next);
              EXPECT_TRUE(torch::equal(next, torch::full({5}, 3.0F)));
            },
            {.check = false, .adjust = [](int, GroupOptions& options) { options.backend = BackendKind::kGloo; }});
}

TEST(GroupRanks, AnAllReduceGoesOnWhoeverAsksWaitsOrDropsIt) {
  for (const int64_t numel : {10, 1'000'000}) {
    run_ranks(2, [numel](Process& process) {
      const at::Tensor asked = torch::ones({numel}), dropped = torch::ones({numel});
      {
        auto work = process.group().all_reduce_async_(asked);
        static_cast<void>(process.group().all_reduce_async_(dropped));
        while (!work.done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        work.wait();
      }
      EXPECT_EQ(asked.sum().item<double>(), 2.0 * static_cast<double>(numel));
      // The group's end waits for what is under way.
      static_cast<void>(process.group().all_reduce_async_(torch::ones({numel})));
    });
  }
}

TEST(GroupRanks, NegativeTagsAreRefusedByName) {
  run_ranks(2, [](Process& process) {
    EXPECT_THAT([&] { process.group().send(torch::ones({1}), 1 - process.rank(), -1); },
                ::testing::ThrowsMessage<UsageError>(HasSubstr("tag -1 is negative")));
    const int most = std::numeric_limits<int>::max();
    at::Tensor tensor = torch::full({1}, process.rank());
    if (process.rank() == 0) process.group().send(tensor, 1, most);
    if (process.rank() == 1) process.group().receive_(tensor, 0, most);
    EXPECT_EQ(tensor.item<int>(), 0);
  });
}

TEST(GroupRanks, AReceiveIsNamedInItsErrors) {
  at::Tensor tensor = torch::ones({1});
  run_ranks(2, [&](Process& process) {
    EXPECT_THAT([&] { process.group().receive_(tensor, 7); },
                ::testing::ThrowsMessage<UsageError>(HasSubstr("receive: the peer is rank 7")));
    EXPECT_THAT([&] { process.group().receive_any_(tensor, -1); },
                ::testing::ThrowsMessage<UsageError>(HasSubstr("receive_any: tag -1 is negative")));
  });

  const auto words = run_ranks_collecting(2, [](Process& process) {
    if (process.rank() == 1) throw std::runtime_error("the disk of rank one is full");
    process.group().receive_(torch::ones({3}), 1);
  });

  EXPECT_THAT(words[0],
              ContainsRegex("receive \\(group_ranks_test.cpp:[0-9]+\\) was not completed because rank 1 failed"));
}

TEST(GroupRanks, BatchedMessagesDoNotDeadlockInAnyOrder) {
  run_ranks(3, [](Process& process) {
    const int next = (process.rank() + 1) % 3, previous = (process.rank() + 2) % 3;
    at::Tensor from_previous = torch::zeros({2});
    at::Tensor second = torch::zeros({5}, at::kInt);

    process.group()
        .batch_send_recv({{PointToPoint::Kind::kReceive, from_previous, previous},
                          {PointToPoint::Kind::kReceive, second, previous},
                          {PointToPoint::Kind::kSend, torch::full({2}, 1.0 * process.rank()), next},
                          {PointToPoint::Kind::kSend, torch::full({5}, process.rank(), at::kInt), next}})
        .wait();

    EXPECT_EQ(from_previous[0].item<double>(), previous);
    EXPECT_EQ(second[4].item<int>(), previous);
  });
}

TEST(GroupRanks, SubgroupsRenumberTheirRanks) {
  run_ranks(4, [](Process& process) {
    const auto odd = process.group().subgroup({3, 1});
    const auto alone = process.group().subgroup({2});

    ASSERT_EQ(odd.has_value(), process.rank() % 2 == 1);
    EXPECT_EQ(alone.has_value(), process.rank() == 2);
    if (odd) {
      at::Tensor sum = torch::full({1}, process.rank());
      odd->all_reduce_(sum);
      EXPECT_EQ(odd->rank(), process.rank() == 3 ? 0 : 1);
      EXPECT_EQ(sum.item<double>(), 4);
    }
  });
}

TEST(GroupRanks, MismatchedShapesAndDtypesNameBothSidesOnEveryRank) {
  for (const bool shapes : {true, false}) {
    const auto words = run_ranks_collecting(3, [shapes](Process& process) {
      const bool odd = process.rank() == 2;
      at::Tensor tensor = shapes ? torch::ones({odd ? 20 : 10}) : torch::ones({10}, odd ? at::kInt : at::kFloat);
      process.group().all_reduce_(tensor);
    });

    for (const auto& said : words) {
      EXPECT_THAT(said, HasSubstr("rank 0 calls all_reduce(sum) of Float [10] at group_ranks_test.cpp:"));
      EXPECT_THAT(said, HasSubstr(shapes ? "rank 2 calls all_reduce(sum) of Float [20]"
                                         : "rank 2 calls all_reduce(sum) of Int [10]"));
    }
  }
}

TEST(GroupRanks, MismatchedOperationsNameBothSides) {
  const auto words = run_ranks_collecting(2, [](Process& process) {
    if (process.rank() == 0) {
      process.group().barrier();
    } else {
      process.group().broadcast_(torch::ones({1}), 0);
    }
  });

  for (const auto& said : words) {
    EXPECT_THAT(said, HasSubstr("rank 0 calls barrier"));
    EXPECT_THAT(said, HasSubstr("rank 1 calls broadcast with root 0"));
  }
}

TEST(GroupRanks, AMessageOfAnotherShapeIsRefusedByTheReceiver) {
  const auto words = run_ranks_collecting(2, [](Process& process) {
    if (process.rank() == 0) {
      process.group().send(torch::ones({3}), 1);
    } else {
      process.group().receive_(torch::ones({4}), 0);
    }
  });

  EXPECT_THAT(words[1], HasSubstr("rank 0 calls send of Float [3]"));
  EXPECT_THAT(words[1], HasSubstr("this rank receives Float [4]"));
}

TEST(GroupRanks, SurvivorsQuoteTheRankThatFailed) {
  const auto words = run_ranks_collecting(3, [](Process& process) {
    if (process.rank() == 1) throw std::runtime_error("the disk of rank one is full");
    at::Tensor tensor = torch::ones({1000});
    process.group().all_reduce_(tensor);
  });

  for (const int survivor : {0, 2}) {
    EXPECT_THAT(words[survivor],
                ContainsRegex("all_reduce \\(group_ranks_test.cpp:[0-9]+\\) was not completed because rank 1 failed: "
                              "the disk of rank one is full"));
  }
}

TEST(GroupRanks, ARankThatNeverComesIsNamed) {
  const Store store = Store::in_process();

  try {
    Group::connect(store, 0, 3, {.timeout = std::chrono::milliseconds(200), .address = "127.0.0.1"});
    FAIL() << "no error";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr("after 0.2 s rank 1, 2 of 3 had not come to group 'world'"));
  }
}

TEST(Group, AWorldOfOneNeedsNoBackend) {
  const Group group;
  at::Tensor tensor = torch::ones({2});

  group.all_reduce_(tensor, ReduceOp::kMean);

  EXPECT_EQ(group.backend_name(), "none");
  EXPECT_EQ(group.all_gather(tensor).size(), 1u);
  EXPECT_TRUE(torch::equal(group.scatter({tensor}, 0), tensor));
  at::Tensor output = torch::zeros({2}), other = torch::zeros({3});
  group.all_to_all_into_(output, tensor);
  EXPECT_TRUE(torch::equal(output, tensor));
  EXPECT_THROW(group.all_to_all_into_(other, tensor), CommError);
  EXPECT_THROW(group.broadcast_(tensor, 1), UsageError);
}

TEST(GroupRanks, ATimeoutWithoutLengthIsRefused) {
  EXPECT_THAT([] { Group::connect(Store::in_process(), 0, 1, {.timeout = std::chrono::milliseconds(0)}); },
              ::testing::ThrowsMessage<UsageError>(HasSubstr("timeout is 0 ms; expected the time that ranks wait")));
}

}  // namespace
}  // namespace hasten::comm
