"""Architectures: one family per file, and an import line below."""

from buttress.models.families import botnet as botnet
from buttress.models.families import cait as cait
from buttress.models.families import cct as cct
from buttress.models.families import ceit as ceit
from buttress.models.families import coatnet as coatnet
from buttress.models.families import cpvt as cpvt
from buttress.models.families import cvt as cvt
from buttress.models.families import darts as darts
from buttress.models.families import deit as deit
from buttress.models.families import densenet as densenet
from buttress.models.families import levit as levit
from buttress.models.families import mlp_mixer as mlp_mixer
from buttress.models.families import mobilevit as mobilevit
from buttress.models.families import poolformer as poolformer
from buttress.models.families import preact_resnet as preact_resnet
from buttress.models.families import pvt_v2 as pvt_v2
from buttress.models.families import resnet as resnet
from buttress.models.families import resnext as resnext
from buttress.models.families import swin as swin
from buttress.models.families import vgg as vgg
from buttress.models.families import vit as vit
from buttress.models.families import vitae as vitae
from buttress.models.families import wideresnet as wideresnet
from buttress.models.families import xcit as xcit
