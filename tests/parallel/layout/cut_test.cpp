// Cuts and the views of cut tensors: cut first and viewed then is viewed first and cut then.
#include "hasten/parallel/layout/cut.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <random>

#include "hasten/parallel/layout/placement.h"

namespace hasten::parallel {
namespace {

TEST(Cut, PartsAreThoseOfTorchChunk) {
  for (const int64_t size : {0, 1, 5, 7, 8, 97}) {
    for (const int parts : {1, 2, 3, 4, 8}) {
      const auto chunks = at::arange(size).chunk(parts);
      for (int part = 0; part < parts; ++part) {
        const int64_t wanted = part < static_cast<int>(chunks.size()) ? chunks[static_cast<size_t>(part)].numel() : 0;
        EXPECT_EQ(part_of(size, parts, part).size(), wanted) << size << " in " << parts << ", part " << part;
      }
    }
  }
}

TEST(Cut, JoinsWhatItHasCut) {
  for (const int64_t blocks : {1, 2, 3}) {
    for (const int parts : {1, 2, 3, 4}) {
      const at::Tensor whole = at::arange(24 * 2).view({2, 24});
      const Cut cut{1, blocks};
      std::vector<at::Tensor> pieces;
      for (int part = 0; part < parts; ++part) pieces.push_back(cut_tensor(whole, cut, parts, part));
      EXPECT_TRUE(join_parts(pieces, cut).equal(whole)) << blocks << " blocks, " << parts << " parts";
    }
  }
}

// Sizes with the same product, in a random grouping of small factors.
std::vector<int64_t> random_sizes(std::mt19937& random, const std::vector<int64_t>& factors) {
  std::vector<int64_t> sizes;
  int64_t size = 1;
  for (const int64_t factor : factors) {
    size *= factor;
    if (random() % 2 == 0) continue;
    sizes.push_back(size);
    size = 1;
  }
  sizes.push_back(size);
  return sizes;
}

TEST(Cut, OfARandomViewIsTheViewOfTheCut) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  int found = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::vector<int64_t> factors;
    for (int i = 0; i < 5; ++i) factors.push_back(std::vector<int64_t>{1, 2, 2, 3, 4}[random() % 5]);
    const auto sizes = random_sizes(random, factors), view = random_sizes(random, factors);
    const int parts = std::vector<int>{2, 3, 4}[random() % 3];
    const Cut cut{static_cast<int64_t>(random() % sizes.size()), static_cast<int64_t>(random() % 3 + 1)};
    const int64_t size = sizes[static_cast<size_t>(cut.dim)];
    if (size % cut.blocks != 0) continue;
    const auto viewed = cut_of_view(sizes, cut, view, parts);
    if (!viewed) continue;
    ++found;
    int64_t numel = 1;
    for (const int64_t one : sizes) numel *= one;
    const at::Tensor whole = at::arange(numel).view(sizes);
    for (int part = 0; part < parts; ++part) {
      auto own = view;
      own[static_cast<size_t>(viewed->dim)] =
          part_size(view[static_cast<size_t>(viewed->dim)], viewed->blocks, parts, part);
      const at::Tensor given = cut_tensor(whole, cut, parts, part).reshape(own);
      ASSERT_TRUE(given.equal(cut_tensor(whole.view(view), *viewed, parts, part)));
    }
  }
  EXPECT_GT(found, 2000);
}

TEST(Cut, FollowsHeadsOfPackedProjections) {
  // [batch, tokens, 3 * 8 * 4] in three blocks, as heads of each.
  EXPECT_EQ(cut_of_view({2, 5, 96}, {2, 3}, {2, 5, 3, 8, 4}, 2), (Cut{3, 1}));
  EXPECT_EQ(cut_of_view({2, 5, 32}, {2, 1}, {2, 5, 8, 4}, 4), (Cut{2, 1}));
  EXPECT_EQ(cut_of_view({2, 8, 5, 4}, {1, 1}, {16, 5, 4}, 2), (Cut{0, 2}));
  // Two heads on four ranks: no view of the parts.
  EXPECT_FALSE(cut_of_view({2, 5, 32}, {2, 1}, {2, 5, 2, 16}, 4));
  // A size that does not divide stays where it is.
  EXPECT_EQ(cut_of_view({2, 5, 97}, {2, 1}, {10, 97}, 2), (Cut{1, 1}));
}

}  // namespace
}  // namespace hasten::parallel
