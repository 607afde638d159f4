"""Small models with random weights and an example batch each, for tests, demo and benchmarks."""

from plait.model.zoo.adapters import clip_lora, gpt2_lora
from plait.model.zoo.albef import albef
from plait.model.zoo.cross_attention import idefics, mllama
from plait.model.zoo.encoder_decoder import t5, whisper
from plait.model.zoo.example import Example
from plait.model.zoo.flava import flava
from plait.model.zoo.frozen import clip_frozen_vision, llava_projector
from plait.model.zoo.fusion import blip, blip_captioning, bridge_tower, bridge_tower_contrastive
from plait.model.zoo.language import bert, gpt2, llama
from plait.model.zoo.multi_task import MultiTask, multi_task
from plait.model.zoo.plain import Residual, Siamese, TwoTowers, residual, siamese, two_towers
from plait.model.zoo.recommender import Recommender, recommender
from plait.model.zoo.three_towers import ThreeTowers, three_towers
from plait.model.zoo.towers import chinese_clip, clap, clip, dual_encoder, siglip
from plait.model.zoo.vision import vit
from plait.model.zoo.vision_language import llava

__all__ = [
    "Example",
    "MultiTask",
    "Recommender",
    "Residual",
    "Siamese",
    "ThreeTowers",
    "TwoTowers",
    "albef",
    "bert",
    "blip",
    "blip_captioning",
    "bridge_tower",
    "bridge_tower_contrastive",
    "chinese_clip",
    "clap",
    "clip",
    "clip_frozen_vision",
    "clip_lora",
    "dual_encoder",
    "flava",
    "gpt2",
    "gpt2_lora",
    "idefics",
    "llama",
    "llava",
    "llava_projector",
    "mllama",
    "multi_task",
    "recommender",
    "residual",
    "siamese",
    "siglip",
    "t5",
    "three_towers",
    "two_towers",
    "vit",
    "whisper",
]
