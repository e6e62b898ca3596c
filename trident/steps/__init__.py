"""Operations on single tuples, as steps over Arrow batches."""
