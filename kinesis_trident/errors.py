"""The errors that end a query or refuse a start, each by its name: for a scheduler that tells them apart.

    from kinesis_trident.errors import CheckpointMismatchError, FencedError

Each is a `KinesisTridentError`, and docs/runbook.md has an entry for each. Those of states and topologies are in
`kinesis_trident.trident` too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinesis_trident.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from kinesis_trident.bolt.errors import (
        BatchFailedError as BatchFailedError,
        BoltError as BoltError,
        EmitError as EmitError,
        FailedException as FailedException,
        FailedShareError as FailedShareError,
        FenceHeldError as FenceHeldError,
        NotBareStreamError as NotBareStreamError,
        NotCoveredError as NotCoveredError,
        NotOfThisBatchError as NotOfThisBatchError,
        OperatorError as OperatorError,
        OtherHomeError as OtherHomeError,
        SchemaRegistryError as SchemaRegistryError,
        SinkError as SinkError,
        StaleBatchError as StaleBatchError,
        TableChangedError as TableChangedError,
        TargetAwayError as TargetAwayError,
        TopologyError as TopologyError,
        TwiceError as TwiceError,
        WorkerDiedError as WorkerDiedError,
    )
    from kinesis_trident.checkpoint.errors import (
        BatchMissingError as BatchMissingError,
        CheckpointError as CheckpointError,
        CheckpointMovedBackError as CheckpointMovedBackError,
        CorruptNodeError as CorruptNodeError,
        EmbeddedServerError as EmbeddedServerError,
        FencedError as FencedError,
        HomeError as HomeError,
        MigrationError as MigrationError,
        NewerFormatError as NewerFormatError,
        NodeTooLargeError as NodeTooLargeError,
        PlanConflictError as PlanConflictError,
        RenamedError as RenamedError,
        StateMissingError as StateMissingError,
        TakeoverRefusedError as TakeoverRefusedError,
        ZooKeeperAccessError as ZooKeeperAccessError,
        ZooKeeperConfigError as ZooKeeperConfigError,
        ZooKeeperRefusedError as ZooKeeperRefusedError,
        ZooKeeperUnavailableError as ZooKeeperUnavailableError,
    )
    from kinesis_trident.common.errors import (
        KinesisTridentError as KinesisTridentError,
        MissingPackageError as MissingPackageError,
    )
    from kinesis_trident.spout.errors import (
        AckError as AckError,
        CheckpointMismatchError as CheckpointMismatchError,
        DataLossError as DataLossError,
        DeadLetterError as DeadLetterError,
        ExhaustedError as ExhaustedError,
        NotOurSourceError as NotOurSourceError,
        OffsetError as OffsetError,
        OptionsError as OptionsError,
        OutcomeMissingError as OutcomeMissingError,
        PinnedRecordsGoneError as PinnedRecordsGoneError,
        ProtocolMismatchError as ProtocolMismatchError,
        SettledBatchError as SettledBatchError,
        SpoolError as SpoolError,
        SpoutError as SpoutError,
        StopTimeoutError as StopTimeoutError,
        StreamChangedError as StreamChangedError,
        StreamRecreatedError as StreamRecreatedError,
        TurnChangedError as TurnChangedError,
        WriteError as WriteError,
    )
    from kinesis_trident.spout.failed_records.retry_ranges import (
        DeaggregateChangedError as DeaggregateChangedError,
    )
    from kinesis_trident.spout.kinesis import (
        AccessDeniedError as AccessDeniedError,
        ConsumerMissingError as ConsumerMissingError,
        InUseError as InUseError,
        InvalidPositionError as InvalidPositionError,
        IteratorExpiredError as IteratorExpiredError,
        KeyUnusableError as KeyUnusableError,
        KinesisError as KinesisError,
        RequestTooLargeError as RequestTooLargeError,
        ShardMissingError as ShardMissingError,
        StreamMissingError as StreamMissingError,
        ThrottledError as ThrottledError,
        Unavailable as Unavailable,
    )
    from kinesis_trident.tracker.errors import DelayError as DelayError
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__)
