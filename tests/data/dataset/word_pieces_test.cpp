// Vocabularies of WordPiece, as Megatron numbers them.
#include "hasten/data/dataset/word_pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/core/error.h"
#include "support/folder.h"

namespace hasten::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using WordPiecesTest = hasten::testing::InFolder;

TEST_F(WordPiecesTest, HaveTheirSpecialTokensAndExtraIdsBehindThePieces) {
  const auto pieces = WordPieces::read(write("vocab.txt", "[UNK]\nun\n##able\n[PAD]\n[SEP]\n[EOS]\n[MASK]\n[CLS]"), 2);

  EXPECT_EQ(pieces.pad_token_id, 3);
  EXPECT_EQ(pieces.sep_token_id, 4);
  EXPECT_EQ(pieces.mask_token_id, 6);
  EXPECT_EQ(pieces.cls_token_id, 7);
  EXPECT_EQ(pieces.eos_token_id, 5) << "a piece of the file";
  EXPECT_EQ(pieces.bos_token_id, 8);
  EXPECT_THAT(pieces.extra_ids, ElementsAre(9, 10));
  EXPECT_EQ(pieces.vocab_size, 11);
  EXPECT_TRUE(pieces.continues_word(2));
  EXPECT_FALSE(pieces.continues_word(1) || pieces.continues_word(10) || pieces.continues_word(-1));
}

TEST_F(WordPiecesTest, ThatCannotBeReadAreRefused) {
  EXPECT_THAT([&] { WordPieces::read(path("none.txt")); }, ThrowsMessage<DataError>(HasSubstr("none.txt")));
  EXPECT_THAT([&] { WordPieces::read(path("none.txt"), -1); },
              ThrowsMessage<UsageError>(HasSubstr("num_extra_ids = -1")));
}

}  // namespace
}  // namespace hasten::data
